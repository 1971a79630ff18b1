"""The snippets of README and docs run as they stand, and what they name exists."""

import json
import re
import shlex
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

import evenprune
from evenprune.models import small_cnn
from evenprune.models.mlp import mlp
from tests.commands import called
from tests.photo_cases import photos

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("paper/*.md")))
}
README, IMAGES = PAGES["README.md"], PAGES["docs/images.md"]
AUDIT, ONE_CALL, OWN_LOOP = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
(OWN_IMAGES,) = re.findall(r"```python\n(.*?)```", IMAGES, flags=re.DOTALL)
FAIRGRAPE, DIAGNOSTICS = re.findall(r"```python\n(.*?)```", PAGES["docs/pruning.md"], flags=re.DOTALL)
PRUNE_IMAGES, *AGAIN = re.findall(r"```\n(evenprune prune .*?)```", README + IMAGES, flags=re.DOTALL)


def samples(n, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (n,), generator=generator)
    inputs = torch.randn(n, 8, generator=generator) + 2 * torch.nn.functional.one_hot(labels, 8)
    groups = torch.randint(0, 2, (n,), generator=generator)
    return inputs, labels, groups


def small_model():
    torch.manual_seed(0)
    return mlp(8, hidden=(16, 16), num_classes=3)


def test_audit_snippet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 3000)
    given = {
        "labels": labels,
        "dense_predictions": labels,
        "pruned_predictions": np.where(rng.random(3000) < 0.05, (labels + 1) % 5, labels),
        "race": rng.choice(["White", "Black", "Asian"], 3000),
        "gender": rng.choice(["m", "f"], 3000),
    }
    exec(AUDIT, given)
    assert given["audit"].verdict in capsys.readouterr().out.lower()
    assert (tmp_path / "audit.html").stat().st_size > 10_000


def test_one_call_snippet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"model": small_model(), "epochs": 4}
    for seed, (name, count) in enumerate({"train": 600, "test": 300, "heldout": 300}.items()):
        inputs, labels, groups = samples(count, seed)
        given[name] = (inputs, labels, {"race": groups})
    with pytest.warns(UserWarning, match="300 held-out samples in 2 groups are few"):
        exec(ONE_CALL, given)
    assert (tmp_path / "comparison.html").exists()
    assert isinstance(given["pruned"], torch.nn.Module)
    assert len(given["result"].models) == 10


def test_own_loop_snippet():
    loader = DataLoader(TensorDataset(*samples(600, 0)), batch_size=64, shuffle=True)
    model = small_model()
    given = {
        "dense_model": small_model(),
        "model": model,
        "train_loader": loader,
        "device": "cpu",
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
    }
    exec(OWN_LOOP, given)
    assert torch.isfinite(given["loss"])
    assert given["masks"].sparsity.item() == pytest.approx(0.9, abs=0.02)


def test_fairgrape_snippet():
    calls = []
    given = {
        "model": small_model(),
        "train_loader": DataLoader(TensorDataset(*samples(200, 0)), batch_size=64),
        "names": ["young", "old"],
        "fine_tune": lambda: calls.append(given["masks"].sparsity.item()),
    }
    exec(FAIRGRAPE, given)
    assert len(calls) == 10
    assert calls[-1] == pytest.approx(0.9, abs=0.02)


def test_diagnostics_snippet():
    inputs, labels, group_ids = samples(200, 0)
    given = {"dense_model": small_model(), "inputs": inputs, "labels": labels, "group_ids": group_ids}
    given |= {"dense_predictions": labels, "pruned_predictions": labels, "names": ["young", "old"]}
    exec(DIAGNOSTICS, given)
    assert all(set(column) == {"young", "old"} for column in given["audit"].columns.values())
    assert "largest Hessian eigenvalue" in str(given["audit"])


@pytest.fixture(scope="module")
def photo_place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    photos(folder)
    return folder


def test_own_images_command(photo_place):
    assert [PRUNE_IMAGES] == AGAIN
    name, *command = shlex.split(PRUNE_IMAGES.replace("\\\n", " "))
    assert name == "evenprune"
    done = called(*command, "--epochs", 6, "--pruning-epochs", 2, cwd=photo_place)
    assert done.returncode in (0, 1, 3), done.stderr
    assert "0 no, 1 yes" in done.stderr
    pages = sorted(path.name for path in (photo_place / "runs/photos/audits").glob("*.html"))
    assert pages == ["000-ceag-s0.8-seed0-test.html", "000-ceag-s0.8-seed0-train.html"]
    page = (photo_place / "runs/photos/audits" / pages[0]).read_text()
    for part in ("Asian × 18–39", "White × 60 and over", "age is in ranges that begin at 18, 40, 60."):
        assert part in page
    assert (
        "3 groups have fewer than 18 training samples, and are merged into “other”: Asian × under 18" in page
    )
    assert (photo_place / "runs/photos/comparison.html").as_uri() in done.stdout


def test_own_images_snippet(photo_place, monkeypatch, capsys):
    monkeypatch.chdir(photo_place)
    model = small_cnn(num_classes=2, in_channels=3)
    model.load_state_dict(load_file(photo_place / "dense.safetensors"))
    given = {"evenprune": evenprune, "methods": evenprune.methods, "model": model}
    given["recipe"] = evenprune.Recipe(epochs=5, pruning_epochs=1, batch_size=32)
    with pytest.warns(UserWarning, match="a ring of 40 fills only after"):  # there are few photos here
        exec(OWN_IMAGES, given)
    assert "288 train, 72 test samples of 2 classes ('no', 'yes')" in capsys.readouterr().out
    assert set(given["photos"]["train"][2]["race × age"]) > {"Asian × 18–39", "other"}
    assert given["result"].audits["CEAG, seed 0"]["test"].verdict in ("pass", "fail", "inconclusive")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(\w+\.py)`", README))))
def test_modules_that_the_readme_names_exist(name):
    assert (ROOT / "src" / "evenprune" / name).exists()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)]+)\)", PAGES[page])
    for place, _, section in (link.partition("#") for link in links):
        there = (ROOT / page).parent / place if place else ROOT / page
        assert there.exists(), place
        if section:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert section in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_all_pages_can_be_reached_from_the_readme():
    reached = set(re.findall(r"\]\(([^)#]+\.md)", README))
    assert reached | {"README.md", "paper/README.md"} == set(PAGES)
    assert "paper/README.md" in PAGES["docs/paper.md"]


def test_every_method_is_in_the_readme():
    for name in evenprune.methods.TABLE:
        assert f"`{name.replace('-', '_')}`" in README


def rows_below(page, title):
    """The cells of the first table below a title, by row and column."""
    table = page.split(title)[1].strip().split("\n\n")
    rows = next(
        [line.strip("| ").split(" | ") for line in part.splitlines()]
        for part in table
        if part.startswith("|")
    )
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def test_what_the_readme_says_of_unseen_data_is_what_the_study_found():
    found = rows_below(PAGES["docs/unseen-tables.md"], "## At a glance\n")
    told = rows_below(README, "## What to use on unseen data\n")
    settings = set.union(*(set(row) for row in found.values()))
    assert set(told) == settings
    for setting, row in told.items():
        for method, cell in row.items():
            accuracy, _, payers = found[method][setting].split(" · ")
            assert cell == f"{accuracy} · {payers}", (setting, method)


def test_the_method_that_the_readme_advises_can_be_asked_for():
    (call,) = re.findall(r"methods\.ceag\(tolerance=.*refresh.*\)", README)
    method = eval(call, {"methods": evenprune.methods})
    assert (method.multipliers_on, method.distill) == ("heldout", 0.9)


def test_the_noise_floor_that_the_readme_quotes():
    """100 groups of 100 samples, 20 % disagreement, nobody harmed: about 11 points."""
    rng = np.random.default_rng(0)
    outcome = rng.choice([0, 1, 2], p=[0.1, 0.1, 0.8], size=10_000)
    audit = evenprune.audit(
        dense_correct=outcome != 1,
        pruned_correct=outcome != 0,
        groups=np.repeat(np.arange(100), 100),
        tolerance=0.02,
    )
    assert audit.noise_floor["max_excess_gap"]["mean"] == pytest.approx(0.11, abs=0.01)


def cells_of(page, heading):
    """The table below a heading, by (name of its row, name of its column)."""
    text = PAGES[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    head, _, *rows = [
        [part.strip() for part in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}


def paper_means(dataset, group, method, sparsity):
    """What the paper prints of one cell, on train and test."""
    (cell,) = [
        entry
        for entry in json.loads((ROOT / "src/evenprune/paper_tables.json").read_text())["results"]
        if (entry["dataset"], entry["group"], entry["method"]) == (dataset, group, method)
        and entry["sparsity"] == sparsity
        and entry["target"] in ("class", "race")
    ]
    return cell["train"]["accuracy"], cell["train"]["max_psi"], cell["test"]["accuracy"]


def test_the_table_of_cifar100_in_the_docs_is_that_of_the_results():
    runs = json.loads((ROOT / "paper/results/cifar100.json").read_text())["runs"]
    usual = {"EL": 0, "CEAG (no RB)": 0, "NFT": None, "NFT + ES": None}  # else rings of 40
    table, seen = cells_of("docs/paper.md", "CIFAR-100"), 0
    for (method, column), told in table.items():
        sparsity, name = float(column.split(" %")[0]), method.removeprefix("within ε: ")
        own = [
            run
            for run in runs
            if (run["method"], run["sparsity"]) == (name, sparsity / 100)
            and run["buffer"] == usual.get(name, 40)
        ]
        assert sorted(run["seed"] for run in own) == [0, 1, 2, 3, 4]
        if name != method:
            met = sum(run["train"]["max_excess_gap"] <= run["tolerance"] for run in own)
            assert told.removesuffix(" seeds") == f"{met} of 5"
            assert column.endswith(f"ε {100 * own[0]['tolerance']:g}")
            continue
        places = (("train", "accuracy"), ("train", "max_excess_gap"), ("test", "accuracy"))
        ours = [100 * statistics.mean(run[split][measure] for run in own) for split, measure in places]
        papers = [number["mean"] for number in paper_means("cifar100", "class", name, sparsity)]
        here, theirs = (" · ".join(f"{value:.1f}" for value in values) for values in (ours, papers))
        assert told == f"{here} ({theirs})"
        seen += 1
    assert seen == 18

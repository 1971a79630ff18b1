"""The paper's tables on UTKFace: its settings, all commands on a small folder of made-up faces, the page."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.optim import SGD

from evenprune import paper_comparison, paper_page, paper_results, paper_text, paper_wording
from evenprune.augment import Flip
from evenprune.data import utkface as utkface_data
from evenprune.models import mobilenet_v2, small_cnn
from evenprune.paper_ablations import others_table, overall_table, tolerance_table
from evenprune.paper_printed import FACES, WITHOUT_OTHERS, Number, printed
from evenprune.recipe import Recipe
from evenprune.tally import InputProblems
from paper import dense_model, results_file, runner, utkface
from paper.cells import Task, cell_of, label, method_of
from paper.runner import Where
from tests import paper_documents
from tests.test_paper_runner import Heard, run_apart

SIDE = 16  # of the images that are made here
FEW = Recipe(
    epochs=4,
    pruning_epochs=2,
    batch_size=32,
    optimizer=partial(SGD, lr=0.02, momentum=0.9),
    augment=Flip(),
    only_at_end=("train",),
)
CROSSED, GENDER = Task("utkface", "race", "race x gender"), Task("utkface", "gender", "race")


# --- the paper's settings, typed here once more ---

PAPER = {
    (FACES, 0.925): (0.01, 0.002),
    (FACES, 0.9): (0.01, 0.002),
    (FACES, 0.85): (0.0025, 0.0001),
    (CROSSED, 0.925): (0.03, 0.001),
    (CROSSED, 0.9): (0.03, 0.001),
    (CROSSED, 0.85): (0.005, 0.00001),
    (GENDER, 0.925): (0.005, 0.003),
    (GENDER, 0.9): (0.005, 0.0001),
    (GENDER, 0.85): (0.005, 0.002),
}


@pytest.mark.parametrize(("task", "sparsity"), PAPER)
def test_every_method_has_the_papers_hyperparameters(task: Task, sparsity: float) -> None:
    made = {name: method_of(cell_of(task, name, sparsity=sparsity, seed=0)) for name in utkface.TABLE_METHODS}
    ceag, el = made["CEAG"], made["EL + RB"]
    assert (ceag.tolerance, ceag.dual_lr) == pytest.approx(PAPER[task, sparsity])
    assert el.dual_lr == (1e-4 if (task, sparsity) == (GENDER, 0.85) else 1e-5)
    for method in (ceag, el):
        assert (method.estimator, method.k, method.negative, method.overall) == ("ring", 40, "keep", "micro")
    assert (made["NFT"].rows, made["NFT"].keep) == ("none", "last")
    assert (made["NFT + ES"].keep, made["NFT + ES"].keep_on) == ("best", "test")


def test_the_table_is_the_papers_in_the_order_asked_for() -> None:
    places = [place for place in printed().cells if place[0].dataset == "utkface"]
    wanted = [(task, sparsity) for task in utkface.TASKS.values() for sparsity in utkface.SPARSITIES]
    assert set(wanted) == set(places) == set(PAPER)
    assert wanted[:4] == [(FACES, 0.925), (FACES, 0.9), (FACES, 0.85), (CROSSED, 0.925)]
    for place in places:
        assert {cell.method for cell in printed().cells[place]} == set(utkface.TABLE_METHODS)


def test_the_recipes_are_the_papers() -> None:
    weight = nn.Parameter(torch.zeros(1))
    dense = utkface.dense_recipe(epochs=50, lr=0.01, batch=128)
    settings = {utkface.RECIPE: (60, 15, [36, 48, 54]), dense: (50, 0, [30, 40, 45])}
    for told, (epochs, pruning, drops) in settings.items():
        assert (told.epochs, told.pruning_epochs, told.batch_size) == (epochs, pruning, 128)
        assert (told.weight_decay, told.decay_everything, told.augment) == (1e-4, True, Flip())
        optimizer = told.optimizer([{"params": [weight]}])
        group = optimizer.param_groups[0]
        assert (type(optimizer), group["lr"], group["momentum"], group["nesterov"]) == (SGD, 0.01, 0.9, False)
        assert sorted(told.scheduler(optimizer, epochs).milestones) == drops
    flags = utkface.parser().parse_args(["dense"])
    assert (flags.epochs, flags.lr, flags.batch, flags.image_size) == (50, 0.01, 128, 128)
    assert utkface.parser().parse_args(["table"]).fleet == 10


def test_shared_cells_are_counted_once() -> None:
    every = utkface.every_cell(range(5))
    table = 9 * 4 * 5
    assert len(every) == len(set(every)) == table + 3 * 5 + 5 + 5  # tolerances, macro, without Others
    assert len(set(every[:table]) & set(utkface.sensitivity_cells(range(5)))) == 5
    assert sorted({c.tolerance for c in utkface.sensitivity_cells([0])}) == [0, 0.005, 0.01, 0.015]
    assert set(utkface.others_cells(FACES, range(5))) < set(every[:table])


def test_what_matters_most_is_trained_first() -> None:
    order = [(stage.title, len(stage.cells)) for stage in utkface.stages(range(5), required=False)]
    first = [
        ("race/race at 92.5%, and CEAG by overall accuracy", 25),
        ("race/race at 90.0%", 20),
        ("race/race at 85.0%", 20),
        ("race/race x gender at 92.5%", 20),
    ]
    assert order == [
        *first,
        ("CEAG by tolerance", 20),
        ("without Others", 10),
        ("race/race x gender at 90.0%", 20),
        ("race/race x gender at 85.0%", 20),
        ("gender/race at 92.5%", 20),
        ("gender/race at 90.0%", 20),
        ("gender/race at 85.0%", 20),
    ]
    assert [(s.title, len(s.cells)) for s in utkface.stages(range(5), required=True)] == first
    cells = [cell for stage in utkface.stages(range(5), required=False) for cell in stage.cells]
    assert set(cells) == set(utkface.every_cell(range(5)))


def test_the_published_overall_accuracy_is_a_cell_of_its_own() -> None:
    micro, macro = utkface.overall_cells([0])
    assert (method_of(micro).overall, method_of(macro).overall) == ("micro", "macro")
    assert replace(method_of(macro), overall="micro") == method_of(micro)
    assert "overall" not in micro.row()
    assert macro.row() == micro.row() | {"overall": "macro"}
    assert results_file.missing({"runs": [micro.row()]}, [micro, macro]) == [macro]
    assert results_file.missing({"runs": [macro.row()]}, [micro, macro]) == [micro]
    assert [label(micro), label(macro)] == ["CEAG", "CEAG, macro"]
    assert label(utkface.sensitivity_cells([0])[1]) == "CEAG, ε = 0.5 %"


# --- the commands, on a small folder ---


def face(rng: np.random.Generator, race: int, gender: int) -> Image.Image:
    """Noise around a colour that tells the race and a slope that tells the gender."""
    base = np.array([(200, 60, 60), (60, 200, 60), (60, 60, 200), (200, 200, 60), (120, 120, 120)])[race]
    slope = np.linspace(-60, 60, SIDE)[:, None, None] * (1 if gender else -1)
    noise = rng.normal(0, 25 + 15 * (race == 4), (SIDE, SIDE, 3))
    return Image.fromarray((base + slope + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names as those of the originals; every race and gender often enough to fill a ring of 40."""
    folder, rng, number = tmp_path_factory.mktemp("faces"), np.random.default_rng(0), 0
    for race in range(5):
        for gender in range(2):
            for _ in range((100, 80, 70, 70, 60)[race]):
                name = f"{rng.integers(1, 100)}_{gender}_{race}_201701{number:011d}.jpg.chip.jpg"
                face(rng, race, gender).save(folder / name, "JPEG", quality=90)
                number += 1
    return folder


def tiny(num_classes: int) -> nn.Module:
    return small_cnn((4, 6, 6), num_classes=num_classes, in_channels=3)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(utkface_data, "load", partial(utkface_data.load, strict=False))
    monkeypatch.setattr(utkface, "mobilenet_v2", tiny)
    monkeypatch.setattr(utkface, "RECIPE", FEW)


@pytest.fixture
def call(faces: Path, tmp_path: Path) -> Any:
    def called(command: str, *more: str) -> int:
        places = [f"--data={faces}", f"--results={tmp_path / 'utkface.json'}", f"--work={tmp_path / 'work'}"]
        places += [f"--weights={tmp_path / 'weights'}", "--device=cpu", "--commit=abc1234"]
        return utkface.main([command, *places, f"--image-size={SIDE}", *more])

    return called


def document_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "utkface.json").read_text(encoding="utf-8"))


TRY = ("--epochs=12", "--batch=32", "--lr=0.05")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_all_commands_one_after_another(
    call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("table", "--seeds=0") == 2
    assert "there are no dense weights" in capsys.readouterr().err
    assert call("dense", *TRY) == 0
    dense = document_in(tmp_path)["dense"]
    assert [(d["target"], d["group"], d["weights"]) for d in dense] == [
        ("gender", "race", "utkface_gender.safetensors"),
        ("race", "race", "utkface_race.safetensors"),
        ("race", "race without Others", "utkface_race_without_others.safetensors"),
        ("race", "race x gender", "utkface_race.safetensors"),
    ]
    assert [len(d["groups"]) for d in dense] == [5, 5, 4, 10]
    assert dense[1]["sha256"] == dense[3]["sha256"]
    assert dense[1]["test"] == dense[3]["test"]
    assert dense[1]["test"]["accuracy"] > 0.5  # chance is 0.2
    assert all(d["image_size"] == SIDE and d["recipe"]["stored"] == "float16" for d in dense)
    written = (tmp_path / "utkface.json").read_bytes()
    assert call("dense") == 0
    assert (tmp_path / "utkface.json").read_bytes() == written

    few = ("--seeds=0", "--sparsity", "0.925")
    assert call("table", "--tasks", "race/race", *few) == 0
    assert call("table", "--tasks", "race/race x gender", "gender/race", *few, "--methods", "CEAG") == 0
    assert call("sensitivity", "--seeds=0") == 0
    assert call("overall", "--seeds=0-1", "--fleet=4") == 0
    assert call("without-others", "--seeds=0") == 0
    assert call("timing", "--methods", "NFT", "--epochs=2", "--fleet=2") == 0
    assert call("variant", "decay_last", "--methods", "NFT", "--seeds=0") == 0
    path = tmp_path / "variants" / f"utkface_decay_last_{FEW.epochs}_epochs.json"
    (apart,) = results_file.read(path)["runs"]
    assert (apart["recipe"], apart["image_size"], apart["sparsity"]) == ("decay_last", SIDE, 0.925)
    document = document_in(tmp_path)
    assert runner.problems(document) == []
    found = [
        (run["target"], run["group"], run["method"], run["tolerance"], run.get("overall"), run["seed"])
        for run in document["runs"]
    ]
    assert found == [
        ("gender", "race", "CEAG", 0.005, None, 0),
        ("race", "race", "NFT", None, None, 0),  # at 90 %
        ("race", "race", "NFT", None, None, 0),
        ("race", "race", "NFT + ES", None, None, 0),
        ("race", "race", "EL + RB", None, None, 0),
        ("race", "race", "CEAG", 0.0, None, 0),
        ("race", "race", "CEAG", 0.005, None, 0),
        ("race", "race", "CEAG", 0.01, None, 0),
        ("race", "race", "CEAG", 0.01, None, 1),
        ("race", "race", "CEAG", 0.015, None, 0),
        ("race", "race", "CEAG", 0.01, "macro", 0),
        ("race", "race", "CEAG", 0.01, "macro", 1),
        ("race", "race without Others", "NFT", None, None, 0),
        ("race", "race x gender", "CEAG", 0.03, None, 0),
    ]
    assert {run["image_size"] for run in document["runs"]} == {SIDE}
    assert sum(document["runs"][1]["changes"]["train"]["samples"]) == 760 * 4 // 5
    assert len(document["runs"][-2]["changes"]["test"]["samples"]) == 4
    assert (document["timings"][0]["target"], document["timings"][0]["group"]) == ("race", "race")

    capsys.readouterr()
    assert call("list", "--seeds=0-1") == 0
    said = capsys.readouterr().out.splitlines()
    lines = {line.rsplit(maxsplit=3)[0] for line in said if line.endswith("0 ·")}
    assert {"race/race: CEAG, ε = 0.5 %", "race/race: EL + RB", "race/race without Others: NFT"} <= lines
    assert any(line.startswith("race/race: CEAG, macro") and line.endswith("0 1") for line in said)
    assert sum(line.endswith(f": finished, at {SIDE} pixels (the paper used 200)") for line in said) == 3

    report = paper_comparison.compare(paper_results.read([tmp_path / "utkface.json"]))
    page, text = paper_page.to_html(report), paper_text.to_text(report)
    assert report.further == ()
    for part in ("CEAG by overall accuracy", "NFT by who is in the data", "CEAG by tolerance"):
        assert part in page
        assert part in text
    assert f"images of {SIDE} pixels; the paper used 200" in text.replace("\n", " ")
    assert "White × female" in page
    assert report.doubts == ()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_stopped_between_fleets_it_goes_on_and_trains_nothing_twice(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("dense", "--models", "race", *TRY) == 0
    heard = Heard()
    monkeypatch.setattr(runner, "progress", lambda: (heard,))
    train = runner.train

    def stopped(*told: Any) -> Any:
        if heard.fleets:
            raise KeyboardInterrupt
        return train(*told)

    wanted = ("table", "--tasks", "race/race", "race/race x gender", "--sparsity", "0.9", "--seeds=0")
    wanted = (*wanted, "--methods", "NFT", "CEAG", "--fleet=2")
    monkeypatch.setattr(runner, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        call(*wanted)
    assert [run["group"] for run in document_in(tmp_path)["runs"]] == ["race", "race"]
    monkeypatch.setattr(runner, "train", train)
    assert call(*wanted) == 0
    assert heard.fleets == 2
    assert [run["group"] for run in document_in(tmp_path)["runs"]] == ["race"] * 2 + ["race x gender"] * 2
    monkeypatch.setattr(utkface, "faces_of", None)  # nothing is read where nothing is missing
    capsys.readouterr()
    assert call(*wanted) == 0
    assert capsys.readouterr().out.count("All 2 runs are finished.") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_all_tables_in_one_call_that_may_be_killed(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(utkface, "TABLE_METHODS", ("NFT", "NFT + ES"))
    monkeypatch.setattr(utkface, "SPARSITIES", (0.925, 0.9))
    assert call("dense", "--models", "race", *TRY) == 0
    heard, read = Heard(), list[str]()
    faces_of, train = utkface.faces_of, runner.train
    monkeypatch.setattr(runner, "progress", lambda: (heard,))
    monkeypatch.setattr(
        utkface, "faces_of", lambda task, flags: read.append(task.group) or faces_of(task, flags)
    )

    def stopped(*told: Any) -> Any:
        if heard.fleets == 2:
            raise KeyboardInterrupt
        return train(*told)

    monkeypatch.setattr(runner, "train", stopped)
    with pytest.raises(KeyboardInterrupt):
        call("required", "--seeds=0")
    runs = document_in(tmp_path)["runs"]
    assert sorted(run["sparsity"] for run in runs) == [0.9] * 2 + [0.925] * 4  # CEAG by either overall
    assert {run["group"] for run in runs} == {"race"}
    assert read == ["race", "race x gender"]  # once for the tables of a task that follow each other
    monkeypatch.setattr(runner, "train", train)
    capsys.readouterr()
    assert call("required", "--seeds=0") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if " of 3: " in line] == [
        "1 of 3: race/race at 92.5%, and CEAG by overall accuracy",
        "2 of 3: race/race at 90.0%",
        "3 of 3: race/race x gender at 92.5%",
    ]
    assert [said.count(f"All {count} runs are finished.") for count in (4, 2)] == [1, 1]
    assert heard.fleets == 3  # NFT and NFT + ES are one run
    assert read[2:] == ["race x gender"]  # nothing is read for tables that are complete

    assert call("all", "--seeds=0") == 2  # before anything is trained
    assert heard.fleets == 3
    problem = capsys.readouterr().err
    assert "utkface_race_without_others.safetensors" in problem
    assert "with `dense --models race_without_others gender`" in problem
    assert call("dense", "--models", "gender", "race_without_others", *TRY) == 0
    assert call("all", "--seeds=0") == 0
    assert len(document_in(tmp_path)["runs"]) == len(utkface.every_cell([0]))


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_runs_start_from_the_weights_as_stored(
    call: Any, tmp_path: Path, faces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("dense", "--models", "race", *TRY) == 0
    weights, places = tmp_path / "weights", [f"--data={faces}", f"--weights={tmp_path / 'weights'}"]
    flags = utkface.parser().parse_args(["table", *places, f"--image-size={SIDE}", f"--work={tmp_path}"])
    where = Where(results=tmp_path / "utkface.json", work=tmp_path, device=torch.device("cpu"))
    start = utkface.start_from(FACES, flags, where)
    state = start.model.state_dict()
    assert all(torch.equal(t, t.half().float()) for t in state.values() if t.ndim > 1)
    held = results_file.dense_of(document_in(tmp_path), FACES)
    assert held is not None
    for split in ("train", "test"):
        assert float(start.answers[split].correct.double().mean()) == held[split]["accuracy"]

    assert call("table", "--seeds=0", f"--image-size={SIDE // 2}") == 2
    assert f"saw images of {SIDE} pixels, and --image-size is {SIDE // 2}" in capsys.readouterr().err
    dense_model.write_weights(weights / "utkface_race.safetensors", tiny(5))
    assert call("table", "--seeds=0") == 2
    assert "is of another dense model than" in capsys.readouterr().err


def test_without_the_images_it_says_where_it_looked(
    tmp_path: Path, call: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("dense", f"--data={tmp_path / 'nowhere'}") == 2
    assert "nowhere" in capsys.readouterr().err
    assert call("dense") == 2  # strict: some images are not all of them
    assert "the split would not be the paper's" in capsys.readouterr().err


# --- weights in half precision ---


def test_half_of_the_weights_fit_below_five_megabytes(tmp_path: Path) -> None:
    model, path = mobilenet_v2(5), tmp_path / "w.safetensors"
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "running" in name:
                tensor.uniform_(1e-6, 1e6)  # beyond what half precision holds
    dense_model.write_weights(path, model, half=True)
    assert path.stat().st_size < 5_000_000
    assert dense_model.precision_of(path) == "float16"
    back = dense_model.load_weights(path, mobilenet_v2(5)).state_dict()
    for name, tensor in model.state_dict().items():
        assert back[name].dtype == tensor.dtype
        assert torch.equal(back[name], tensor.half().float() if tensor.ndim > 1 else tensor)


@pytest.mark.parametrize(("scale", "kept"), [(1.0, "float16"), (1e-9, "float32")])
def test_weights_that_half_precision_would_spoil_are_kept_in_full(
    tmp_path: Path, scale: float, kept: str
) -> None:
    torch.manual_seed(0)
    model, path, said = nn.Linear(4, 3, bias=False), tmp_path / "w.safetensors", list[str]()
    with torch.no_grad():
        model.weight.mul_(scale)  # half precision makes zeros of the smallest
    inputs = torch.randn(200, 4)

    def answers(made: nn.Module) -> Any:
        right = model(inputs).argmax(1) == made(inputs).argmax(1)
        return type("Answers", (), {"correct": right})()

    def measure() -> Any:
        found = answers(dense_model.load_weights(path, nn.Linear(4, 3, bias=False)))
        return type("Start", (), {"answers": {"train": found, "test": found}})()

    whole = answers(model)
    fitted = type("Fitted", (), {"model": model, "predictions": {"train": whole, "test": whole}})()
    where = Where(results=tmp_path / "r", work=tmp_path, device=torch.device("cpu"), say=said.append)
    start = dense_model.write_half(path, runner.Trained([fitted], 1.0, resumed=False), measure, where)
    assert dense_model.precision_of(path) == kept
    assert len(said) == (kept == "float32")
    assert start.answers["test"].correct.double().mean() > 0.99


# --- the results file ---


def test_dense_models_of_several_tasks_replace_their_own_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    told = {"sha256": "1", "seconds": 1.0}
    race, gender = (
        paper_documents.dense(5, dataset="utkface", target=target, group="race") | told
        for target in ("race", "gender")
    )
    results_file.add_dense(path, [race])
    results_file.add_dense(path, [gender, race | {"sha256": "2"}])
    held = results_file.read(path)
    assert [(model["target"], model["sha256"]) for model in held["dense"]] == [("gender", "1"), ("race", "2")]
    assert results_file.dense_of(held, FACES) == race | {"sha256": "2"}
    assert results_file.dense_of(held, CROSSED) is None
    nameless = {key: value for key, value in race.items() if key != "target"}
    for models, said in (
        ([race, race], "there are 2 dense models of Task"),
        ([nameless], "dense[0]: it names no task"),
    ):
        assert any(said in problem for problem in results_file.problems({"runs": [], "dense": models}))
    with pytest.raises(InputProblems, match="sha256 is missing"):
        results_file.add_dense(path, [{key: race[key] for key in race if key != "sha256"}])


# --- the page ---


def made_up(
    method: str, sparsity: float, seeds: Sequence[int], *, group: str = "race", **changed: Any
) -> Any:
    """Runs near the paper's; of another group, with as many groups."""
    place = (FACES, sparsity)
    cell = next(cell for cell in printed().cells[place] if cell.method == method)
    size = 4 if group == WITHOUT_OTHERS.group else 5
    return [paper_documents.run(place, cell, seed, groups=size, group=group, **changed) for seed in seeds]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> paper_comparison.PaperReport:
    document = paper_documents.faces()
    document["runs"] += made_up("CEAG", 0.925, range(3), overall="macro")
    document["runs"] += made_up("NFT", 0.9, range(3), group=WITHOUT_OTHERS.group)
    for run in document["runs"]:
        run["image_size"] = 128
    path = tmp_path_factory.mktemp("page") / "utkface.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return paper_comparison.compare(paper_results.read([path]))


def test_the_printed_table_without_others() -> None:
    paper = printed()
    assert paper.others[FACES]["train"]["max_excess_gap"] == Number(0.087)
    assert paper.others[WITHOUT_OTHERS]["test"]["pairwise_disparity"] == Number(0.109)


def test_overall_accuracies_and_others_have_tables_of_their_own(
    report: paper_comparison.PaperReport,
) -> None:
    tables = {(a.method, a.heading): dict(a.rows) for a in report.ablations}
    assert len(tables) == 3
    overall = tables["CEAG", "overall accuracy"]
    assert [cell.seeds for cell in overall.values()] == [(0, 1, 2)] * 2
    micro, macro = overall.values()
    usual = next(t for t in report.tables if (t.task, t.sparsity) == (FACES, 0.925)).cells[-1]
    assert (usual.method, usual.seeds) == ("CEAG", (0, 1, 2))
    assert usual.figures == micro.figures  # no macro run is among those of table 1
    assert micro.figures["train"]["accuracy"].here != macro.figures["train"]["accuracy"].here
    assert micro.figures["train"]["accuracy"].paper == macro.figures["train"]["accuracy"].paper
    assert macro.figures["test"]["max_excess_gap"].floor is not None
    others = tables["NFT", "who is in the data"]
    assert others["Without Others"].figures["test"]["accuracy"].paper == Number(0.867)
    assert others["All races"].figures["test"]["accuracy"].paper == Number(0.795)
    assert others["Without Others"].seeds == others["All races"].seeds == (0, 1, 2)
    assert report.further == ()


def test_the_size_of_the_images_is_said(report: paper_comparison.PaperReport) -> None:
    said = paper_wording.summary_sentences(report)
    assert said.count("UTKFace: images of 128 pixels; the paper used 200.") == 1
    page = paper_page.to_html(report)
    assert page.count("Made with images of 128 pixels; the paper used 200.") == 2 * 2  # glance and table 1
    sides = {row[0]: row[-1] for row in paper_page._page_data(report)["rows"]}  # the CSV, by data set
    assert (sides["utkface"], sides["cifar100"]) == ("128 px, the paper 200", "")
    usual = replace(report.summaries[0], image_sizes=())
    assert paper_wording.size_note(replace(report, summaries=(usual,)), usual.task) == ""


def test_a_dense_model_without_runs_says_its_size_too(tmp_path: Path) -> None:
    document = paper_documents.faces()
    document["dense"] = [d | {"target": "gender", "image_size": 96} for d in document["dense"][:1]]
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    found = paper_comparison.compare(paper_results.read([path]))
    told = "Made with images of 96 pixels; the paper used 200. "
    assert paper_wording.size_note(found, utkface.GENDER) == told


def test_the_papers_groups_weigh_as_the_samples_of_its_split() -> None:
    """By our counts of the test split, its accuracies per group give its overall accuracies."""
    samples = np.array([1991, 914, 686, 825, 325])  # White, Black, Asian, Indian, Others
    for (task, sparsity, split, method), groups in printed().group_accuracy.items():
        if (task, split) == (FACES, "test") and method != "Dense":
            cell = next(cell for cell in printed().cells[task, sparsity] if cell.method == method)
            weighed = np.average([number.mean for number in groups.values()], weights=samples)
            assert weighed == pytest.approx(cell.figures["test"]["accuracy"].mean, abs=0.002)


def test_the_dense_model_stands_beside_the_papers(report: paper_comparison.PaperReport) -> None:
    own = next(summary for summary in report.summaries if summary.task == FACES)
    here, theirs = own.dense["test"]
    assert here == next(dense for dense in report.dense if dense.task == FACES).accuracy["test"]
    groups = printed().group_accuracy[FACES, 0.9, "test", "Dense"]
    assert theirs == pytest.approx(np.mean([number.mean for number in groups.values()]))  # of groups alike
    told = f"{100 * here:.1f} % on test data here, {100 * theirs:.1f} % in the paper"
    said = paper_wording.summary_sentences(report)
    assert any(line.startswith(f"UTKFace race / race, before any pruning: {told}") for line in said)
    assert f"Before any pruning: {told}" in paper_page.to_html(report)
    twice = replace(own, task=utkface.CROSSED)  # the same model: said once
    both = paper_wording.summary_sentences(replace(report, summaries=(own, twice)))
    titles = "UTKFace race / race and UTKFace race / race × gender"
    assert [line for line in both if "before any" in line] == [
        f"{titles}, before any pruning: {told} (by its groups' accuracies)."
    ]
    others = [summary for summary in report.summaries if not summary.dense]
    assert all(paper_wording.dense_note(report, summary.task) == "" for summary in others)


def test_the_text_fits(report: paper_comparison.PaperReport) -> None:
    text = paper_text.to_text(report)
    assert max(map(len, text.splitlines())) <= paper_text.WIDTH
    assert "…" not in text
    assert "macro (published)" in text


def test_runs_with_another_dual_step_are_further_runs(tmp_path: Path) -> None:
    document = {"runs": made_up("CEAG", 0.925, [0], overall="macro", dual_lr=0.5)}
    document["runs"] += made_up("CEAG", 0.925, [0], overall="macro")
    document["runs"] += made_up("CEAG", 0.925, [0], overall="micro")
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    results = paper_results.read([path])
    (row,) = paper_comparison.compare(results).further
    assert (row.dual_lr, row.overall) == (0.5, "macro")
    assert [cell.seeds for _, cell in overall_table(results.runs, printed()).rows] == [(0,), (0,)]
    assert sum(len(cell.seeds) for _, cell in tolerance_table(results.runs, printed()).rows) == 1
    assert not any(cell.seeds for _, cell in others_table(results.runs, printed()).rows)


def test_what_the_page_refuses(tmp_path: Path) -> None:
    runs = made_up("CEAG", 0.925, [0], overall="mean") + made_up("CEAG", 0.925, [1], image_size=-3)
    path = tmp_path / "utkface.json"
    path.write_text(json.dumps({"runs": runs}), encoding="utf-8")
    with pytest.raises(InputProblems, match='must be "micro" or "macro"') as error:
        paper_results.read([path])
    assert "image_size is -3" in str(error.value)


# --- where it runs ---


def test_neither_polars_nor_typer_nor_rich_is_needed(faces: Path, tmp_path: Path) -> None:
    absent = ["polars", "typer", "rich", "altair", "sklearn"]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from paper import utkface\nfrom evenprune.data import utkface as data\n"
    code += f"made = data.load({str(faces)!r}, strict=False, image_size=8, cache={str(tmp_path)!r})\n"
    code += "print(made.split('train').inputs.shape[1:], len(made.groups))"
    done = run_apart("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([3, 8, 8]) 5"


def test_it_runs_as_a_file(tmp_path: Path) -> None:
    done = run_apart("paper/utkface.py", "list", f"--results={tmp_path / 'none.json'}", "--seeds=0,1")
    assert done.returncode == 0, done.stderr
    assert "dense model race: missing" in done.stdout
    assert run_apart("paper/utkface.py", "table", "--help").returncode == 0
    done = run_apart("paper/utkface.py", "table", "--tasks", "race/gender")
    assert done.returncode == 2
    assert "invalid choice: 'race/gender'" in done.stderr

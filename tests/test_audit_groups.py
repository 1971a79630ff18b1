"""The audit of a table with numbers in ranges and small groups merged; and the command that lists caches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from evenprune import audit, groups
from tests.commands import called
from tests.test_cli import audit as command
from tests.test_cli import refused

ANSWERS = ["--label", "y", "--dense", "big", "--pruned", "small", "--tolerance", "0.05"]
GROUPS = ["--group", "race", "--group", "age"]


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 3000)
    dense = np.where(rng.random(3000) < 0.9, y, (y + 1) % 5)
    pruned = np.where(rng.random(3000) < 0.04, (dense + 1) % 5, dense)
    age = [None if i % 100 == 0 else int(a) for i, a in enumerate(rng.integers(1, 95, 3000))]
    race = rng.choice(["A", "B", "C"], 3000, p=[0.6, 0.39, 0.01])
    columns = {
        "y": y,
        "big": dense,
        "small": pruned,
        "tiny": (pruned + (rng.random(3000) < 0.02)) % 5,
        "race": race,
        "age": age,
        "income": rng.lognormal(10, 1, 3000),
    }
    return pl.DataFrame(columns, strict=False)


@pytest.fixture(scope="module", params=["csv", "parquet"])
def table(request: Any, frame: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / f"t.{request.param}"
    frame.write_csv(path) if request.param == "csv" else frame.write_parquet(path)
    return path


def written(*arguments: Any) -> dict[str, Any]:
    done = command(*arguments, "--json", "-")
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_table_is_audited_like_its_columns(table: Path, frame: pl.DataFrame) -> None:
    document = written(table, *ANSWERS, *GROUPS, "--bin", "age=18,40,60", "--merge-below", 30)
    column = groups.merge_below(
        {"race": frame["race"], "age": groups.binned(frame["age"], edges=[18, 40, 60])}, 30
    )
    plain = audit(
        labels=frame["y"],
        dense=frame["big"],
        pruned=frame["small"],
        groups={"race × age": column},
        tolerance=0.05,
    ).to_dict()
    assert document["groups"] == plain["groups"]
    assert document["attributes"] == ["race × age"]
    assert document["notes"][0] == "age is in ranges that begin at 18, 40, 60."
    assert document["notes"][1:] == list(plain["notes"])
    assert (
        "4 groups have fewer than 30 samples, and are merged into “other”: C × under 18"
        in document["notes"][1]
    )


def test_quantiles_and_losses(table: Path) -> None:
    losses = ["--dense-loss", "income", "--pruned-loss", "age", "--tolerance", "0.05"]
    document = written(table, *ANSWERS, "--group", "income", "--bin", "income=quantiles:4")
    sizes = [group["samples"] for group in document["groups"]]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) < 150
    assert document["notes"][0].endswith(", quantiles of the samples.")
    done = command(table, *losses, *GROUPS, "--bin", "race=3", "--merge-below", 10)
    refused(
        done,
        "'race' is to be put into ranges, but 3,000 of 3,000 values are no numbers",
        "'age' has 30 missing",
    )


def test_several_models_share_the_notes(table: Path) -> None:
    document = written(table, *ANSWERS, "--pruned", "tiny", *GROUPS, "--bin", "age=50", "--merge-below", 40)
    assert len(document["models"]) == 2
    for one in (document, *document["models"].values()):
        assert one["notes"][0] == "age is in ranges that begin at 50."
        assert "merged into “other”" in one["notes"][1]


def test_each_attribute_may_be_in_ranges(table: Path) -> None:
    document = written(table, *ANSWERS, *GROUPS, "--bin", "age=50", "--each")
    assert "age=50 and over" in {group["group"] for group in document["groups"]}


def test_wrong_rules_are_told_with_everything_else(table: Path) -> None:
    rules = ["--bin", "race=3,1", "--bin", "ag=3", "--bin", "income", "--merge-below", 0, "--each"]
    refused(
        command(table, *ANSWERS, *GROUPS, *rules, "--confidence", 2),
        "6 problems", "bin is 'race=3,1': the edges must rise", "bin names column 'ag', which is no group",
        "bin is 'income': write COLUMN=EDGES", "merge_below is 0", "leave one out", "confidence is 2",
    )  # fmt: skip
    refused(command(table, *ANSWERS, *GROUPS, "--bin", "age=200"), "lie in one range, 'under 200'")
    refused(
        command(table, *ANSWERS, *GROUPS, "--merge-below", 9999),
        "merge_below is 9,999: every group has fewer",
    )


def test_caches_are_listed_by_a_command(tmp_path: Path) -> None:
    assert called("data", "caches", cwd=tmp_path).stdout.startswith(
        "runs/image-cache: there is no such folder"
    )
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / f"images-{'0' * 32}.json").write_text('{"version": 1}')
    listed = called("data", "caches", "c", cwd=tmp_path)
    assert listed.returncode == 0
    assert "c: 1 cache, 14 B. Remove with --remove" in listed.stdout
    assert "1 cache removed" in called("data", "caches", "c", "--remove", cwd=tmp_path).stdout
    assert list((tmp_path / "c").iterdir()) == []

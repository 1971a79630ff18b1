"""The study on unseen data with groups that are no labels: gender predicted, groups by age."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evenprune.data import utkface as utkface_data
from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_answers,
    beyond_cells,
    beyond_data,
    beyond_findings,
    beyond_results,
    beyond_summary,
    beyond_table,
)
from paper.beyond_cells import AGES, SMALL, Grid
from paper.beyond_data import SOURCES
from paper.beyond_measures import name_of
from paper.beyond_methods import BIAS, LOWER, PASSES, STUDY
from tests.test_paper_beyond_faces import DENSE, FEW, make_faces
from tests.test_paper_beyond_faces import SMALL as SETTINGS
from tests.test_paper_utkface import SIDE


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained from the command line: a dense model, then runs, some of them with half the held-out faces."""
    folder = tmp_path_factory.mktemp("small")
    faces = make_faces(tmp_path_factory.mktemp("faces"))
    places = [f"--results={folder / 'beyond.json'}", f"--work={folder / 'work'}", "--commit=abc1234"]
    places += ["--dataset", SMALL, f"--data={faces}", f"--image-size={SIDE}", "--device=cpu"]
    places += [f"--weights={folder / 'small.safetensors'}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utkface_data, "load", partial(utkface_data.load, strict=False))
        patch.setitem(SOURCES, SMALL, replace(SOURCES[SMALL], recipe=FEW))
        assert beyond.main(["dense", *places, *DENSE]) == 0
        some = [*SETTINGS, "--seeds=0-1", "--tune-seeds=0"]
        assert beyond.main(["study", *places, *some, "--without", "FairGRAPE"]) == 0
        few = ["--heldout-used=0.5", "--methods", PASSES, LOWER]
        assert beyond.main(["study", *places, *some, *few]) == 0
    return folder


def rows_in(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = beyond_results.read(folder / "beyond.json")["runs"]
    return rows


def test_ages_are_put_into_ranges() -> None:
    ages = [0, 4, 5, 14, 15, 24, 25, 34, 35, 44, 45, 59, 60, 74, 75, 116]
    assert beyond_data.ranges_of(ages).tolist() == [g for g in range(8) for _ in (0, 1)]
    assert beyond_data.ranges_of(np.array([4.0, 75.0])).tolist() == [0, 7]
    assert name_of(0, dataset=SMALL, groups="age") == "under 5"


def test_every_run_is_of_gender_by_age(finished: Path) -> None:
    rows = rows_in(finished)
    assert {(row["dataset"], row["groups"], row["image_size"]) for row in rows} == {(SMALL, "age", SIDE)}
    samples = {tuple(row["changes"]["audit"]["samples"]) for row in rows}
    assert [len(own) for own in samples] == [len(AGES)]
    answers = beyond_answers.read(finished / "beyond_answers.json")["datasets"][SMALL]
    assert [*answers["groups"]] == ["age"]


def test_all_methods_but_the_class_bias_are_run(finished: Path) -> None:
    rows = rows_in(finished)
    whole = {row["method"] for row in rows if row["heldout_used"] is None}
    assert whole == {*STUDY} - {BIAS, "FairGRAPE"}
    few = {row["method"] for row in rows if row["heldout_used"] == 0.5}
    assert few == {PASSES, LOWER, "CEAG held-out (best feasible)"}  # of one training
    grid = Grid(dataset=SMALL, groups="age")
    with pytest.raises(InputProblems, match=r"class bias is for groups that are labels, .* not for age"):
        beyond_cells.cells_of(grid, names=[BIAS], seeds=[0], augment=False)
    (nft,) = beyond_cells.cells_of(grid, names=["NFT"], seeds=[0], augment=False)
    assert beyond_cells.riders(nft, grid) == [nft]


def test_tables_name_it_and_ask_for_no_class_bias(finished: Path) -> None:
    results = beyond_results.read(finished / "beyond.json")
    answers = beyond_answers.read(finished / "beyond_answers.json")
    told = "\n".join(beyond_table.lines(results, answers))
    assert "Small faces, age groups, 95.0% sparse, without augmentation" in told
    assert BIAS not in told
    for block in beyond_summary.blocks(results, answers):
        assert BIAS not in beyond_findings.expected(block)


def test_it_is_made_for_a_cpu() -> None:
    source = SOURCES[SMALL]
    assert source.fleet == 1
    assert source.recipe.on(torch.device("cpu")).channels_last
    assert sum(p.numel() for p in source.network().parameters()) < 30_000

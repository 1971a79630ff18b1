"""The command line of the study on unseen data: what it refuses, all at once, and what `list` tells."""

import copy
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evenprune.tally import InputProblems
from paper import (
    beyond,
    beyond_flags,
    beyond_results,
    beyond_rows,
    beyond_summary,
    dense_model,
)
from paper.beyond_cells import Cell, Grid, cells_of
from paper.beyond_data import SOURCES
from paper.beyond_methods import ALL_PAIRS, BIAS
from tests.test_paper_beyond import shrink
from tests.test_paper_beyond_page import EVEN, answers, made, made_row

Documents = tuple[dict[str, Any], dict[str, Any]]
RESULTS = Path(__file__).parent.parent / "paper" / "results" / "beyond.json"
SAMPLES = "give a number of samples, such as 50, or a share between 0 and 1, as 0.2"
ONE, FRACTION = "give a whole number of at least 1", "give a fraction from 0 to 1, as 0.01"
NOT_NEGATIVE = "give a number of at least 0"


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command line is refused with: nothing has been read, trained or written then."""

    def read(*args: Any, **more: Any) -> Any:
        raise AssertionError("something was read")

    monkeypatch.setattr(dense_model, "load_weights", read)
    monkeypatch.setattr(beyond_results, "read", read)
    for name, source in SOURCES.items():
        monkeypatch.setitem(SOURCES, name, replace(source, read=read))

    results = tmp_path / "beyond.json"
    results.touch()

    def call(*words: str) -> str:
        assert beyond.main([*words, "--results", str(results), "--work", str(tmp_path / "work")]) == 2
        assert list(tmp_path.iterdir()) == [results]
        assert not results.read_text()
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    return call


WRONG = {
    "study --methods CEAG --dual-lr -1": f"--dual-lr is -1: {NOT_NEGATIVE}",
    "study --tolerance 3": f"--tolerance is 3: {FRACTION}",
    "study --tolerance -1": f"--tolerance is -1: {FRACTION}",
    "study --tolerance nan": f"--tolerance is nan: {FRACTION}",
    "study --buffer 0": f"--buffer is 0: {ONE}",
    "study --methods 'CEAG held-out (passes)' --refresh 0": f"--refresh is 0: {ONE}",
    "study --importance-batches 0": f"--importance-batches is 0: {ONE}",
    "study --heldout 1.5": f"--heldout is 1.5: {SAMPLES}",
    "study --heldout-used 0": f"--heldout-used is 0: {SAMPLES}",
    "study --sparsity 1": "--sparsity is 1: give a share of at least 0 and below 1, as 0.95",
    "study --dro-dual-lr inf": f"--dro-dual-lr is inf: {NOT_NEGATIVE}",
    "study --folds 1": "--folds is 1: give a whole number of at least 2",
    "study --tune-seeds first": "--tune-seeds is 'first': give seeds, as 0-4 or 0,1,2",
    "study --seeds 3-4": "dual steps are chosen with seeds 0-1, and --seeds is 3, 4: give those too",
    "study --save-every 0": f"--save-every is 0: {ONE}",
    "study --part 2 --image-size 0": f"--image-size is 0: {ONE}",
    "formulations --pair-tolerance -1 --methods 'all pairs'": f"--pair-tolerance is -1: {FRACTION}",
    "formulations --loss-tolerance -1": f"--loss-tolerance is -1: {NOT_NEGATIVE}",
    "timing --fleet 0": f"--fleet is 0: {ONE}",
    "timing --methods NFT --without NFT": "--without NFT leaves no method: leave out fewer, or give other",
    "study --methods NFT CEAG --without CEAG NFT": "--without CEAG NFT leaves no method",
    "formulations --methods CEAG --without CEAG": "--without CEAG leaves no method",
    "plan --dual-lr -1": f"--dual-lr is -1: {NOT_NEGATIVE}",
    "plan --epochs 0": f"--epochs is 0: {ONE}",
    "plan --seconds-per-run -1": f"--seconds-per-run is -1: {NOT_NEGATIVE}",
    "list --tolerance -1": f"--tolerance is -1: {FRACTION}",
    "show --tolerance 3": f"--tolerance is 3: {FRACTION}",
    "page --tolerance 3": f"--tolerance is 3: {FRACTION}",
    "show --payers 'small mammal'": "--payers 'small mammal' is no group of any data set: give names such as "
    "'small_mammals'",
    "show --dataset utkface --payers apple Asian": "--payers 'apple' is no group of utkface: give names such "
    "as 'White', 'Black', 'Asian', 'Indian', 'Others'",
    "dense --folds 0": "--folds is 0: give a whole number of at least 2",
    "dense --lr 0": "--lr is 0: give a number above 0",
    "dense --epochs 0": f"--epochs is 0: {ONE}",
    "dense --batch 0": f"--batch is 0: {ONE}",
    "dense --seed -1": "--seed is -1: give a whole number of at least 0",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_flag_is_named_with_what_would_be_right(line: str, refused: Callable[..., str]) -> None:
    assert refused(*shlex.split(line)).startswith(WRONG[line])


def test_all_wrong_flags_are_told_in_one_message(refused: Callable[..., str]) -> None:
    words = "study --part 1 --methods NFT --tolerance 3 --dual-lr 0.1 -1 --fleet 0 --heldout-used 5000"
    said = refused(*words.split()).splitlines()
    assert said[0] == "5 problems:"
    assert [line.split(":")[0] for line in said[1:]] == [
        "- --tolerance is 3",
        "- --dual-lr is -1",
        "- --fleet is 0",
        "- --part names its own methods; leave --methods out",
        "- --heldout-used is 5000",
    ]
    said = refused("page", "--tolerance", "3", "--to", "/nowhere/at/all.html").splitlines()
    assert [line[:14] for line in said] == ["2 problems:", "- --tolerance ", "- --to /nowher"]


def test_usual_values_of_every_command_are_accepted(tmp_path: Path) -> None:
    for dataset in SOURCES:
        for command in beyond.COMMANDS:
            words = [command, "--dataset", dataset]
            flags = beyond.parser(dataset).parse_args(words)
            beyond.refuse_wrong(flags, words=words)
    for edge in ("--tolerance 0", "--tolerance 1", "--loss-tolerance 3", "--dual-lr 0", "--sparsity 0"):
        words = ["study", *edge.split()]
        beyond.refuse_wrong(beyond.parser().parse_args(words), words=words)


def test_a_told_number_of_batches_is_never_the_usual_one() -> None:
    flags = beyond.parser().parse_args(["study", "--importance-batches", "0"])
    assert beyond_flags.grid_of(flags).importance_batches == 0  # which is refused


# --- more held-out samples than there are ---


@pytest.mark.parametrize(
    ("line", "most"),
    [
        (
            "study --heldout-used 25 5000",
            "5000: --heldout 50 holds out 250 samples a superclass; give 1 to 250",
        ),
        ("list --groups class --heldout-used 51", "51: --heldout 50 holds out 50 samples a class"),
        ("study --heldout 20 --heldout-used 101", "101: --heldout 20 holds out 100 samples a superclass"),
        ("study --part 4 --heldout-used 100", "100: --heldout 50 holds out 50 samples a class"),
        ("plan --heldout-used 300", "300: --heldout 50 holds out 250 samples a superclass"),
    ],
)
def test_more_held_out_samples_than_there_are_are_refused(
    line: str, most: str, refused: Callable[..., str]
) -> None:
    assert f"--heldout-used is {most}" in refused(*line.split())


@pytest.mark.parametrize(
    "line",
    [
        "study --heldout-used 250 all",  # as many as there are: all
        "study --dataset utkface --heldout-used 5000",  # of a share the data tell, before training
        "plan --heldout 10",  # a part of the plan names more than there are then
        "study --part 5 --heldout 10",
    ],
)
def test_as_many_as_there_are_or_as_the_plan_names_are_not_refused(line: str) -> None:
    words = line.split()
    flags = beyond.parser(beyond_flags.dataset_in(words)).parse_args(words)
    beyond.refuse_wrong(flags, words=words)


# --- rows ---


def row_of(**told: Any) -> dict[str, Any]:
    cell = {"method": "CEAG", "groups": "superclass", "sparsity": 0.95, "seed": 0, "tolerance": 0.01}
    return made_row(Cell(**{**cell, **told}), answers(EVEN))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"tolerance": 3.0}, "tolerance is 3.0; it must be a fraction from 0 to 1"),
        ({"tolerance": -1.0}, "tolerance is -1.0; it must be a number of at least 0"),
        ({"tolerance": None}, "tolerance is None; it must be a fraction"),
        ({"method": BIAS, "tolerance": 1.5}, "tolerance is 1.5; it must be a fraction"),
        ({"method": "Ψ_PW", "tolerance": 1.5}, "tolerance is 1.5; it must be a fraction"),
        ({"dual_lr": -1.0}, "dual_lr is -1.0; it must be a number of at least 0, or null"),
        ({"buffer": 0}, "buffer is 0; it must be a whole number of at least 1, or null"),
        ({"epochs": 0}, "epochs is 0; it must be a whole number of at least 1"),
        ({"sparsity": 1.5}, "sparsity is 1.5; it must be a share"),
    ],
)
def test_a_row_of_a_wrong_setting_is_refused_with_file_and_row(
    told: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "beyond.json"
    path.write_text(json.dumps({"runs": [row_of(seed=1), row_of(**told)]}), encoding="utf-8")
    for command in ("show", "list"):
        assert beyond.main([command, "--results", str(path)]) == 2
        assert f"{path}: runs[1]: {words}" in capsys.readouterr().err
    with pytest.raises(InputProblems, match=r"runs\[\d\]: .* it must be"):
        beyond_results.add_runs(tmp_path / "other.json", [row_of(seed=1), row_of(**told)])
    assert not (tmp_path / "other.json").exists()


def test_a_tolerance_of_a_loss_may_be_above_one() -> None:
    rows = [row_of(), row_of(method="CELG", tolerance=3.0), row_of(method="NFT", tolerance=None)]
    assert beyond_results.problems({"runs": rows}) == []


# --- all pairs ---


def test_a_group_and_itself_are_no_pair() -> None:
    history = torch.zeros(6, 400)
    history[:, 1:299] = 1.0
    told = beyond_rows.multipliers_of(history, 2, rows=380)
    assert told is not None
    assert (told["rows"], told["active"]) == (380, 298)


def paired(rows: int) -> Documents:
    """A run of all pairs of 3 groups, as it is stored."""
    results, kept = made({"NFT": [EVEN]})
    cell = Cell(method=ALL_PAIRS, groups="class", sparsity=0.95, seed=0, tolerance=0.02, dual_lr=0.1)
    moved = beyond_rows.multipliers_of(torch.ones(6, rows), 2)
    held = {"train": 0.01, "heldout": 0.01, "choice": 0.01, "audit": 0.01}
    own = {"allowed": 0.02, "value": held, "feasible": dict.fromkeys(held, True)}
    more = {"multipliers": moved, "constraint": own}
    return {"runs": [*results["runs"], made_row(cell, answers(EVEN), **more)]}, kept


@pytest.mark.parametrize("rows", [9, 6])  # as rows were written once, and as they are now
def test_all_pairs_are_shown_with_as_many_constraints_as_there_are_pairs(rows: int) -> None:
    results, kept = copy.deepcopy(paired(rows))
    assert beyond_results.problems(results) == []
    (block,) = beyond_summary.blocks(results, kept)
    assert [(one.method, one.of) for one in block.constraints] == [(ALL_PAIRS, 6)]
    told = "\n".join(beyond.beyond_table.lines(results, kept))
    assert " of 6" in told
    assert " of 9" not in told


def test_new_rows_of_all_pairs_count_pairs_and_other_rows_all_multipliers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch)
    places = ["--results", str(tmp_path / "beyond.json"), "--weights", str(tmp_path / "dense.safetensors")]
    places += ["--work", str(tmp_path / "work"), "--heldout", "10", "--device", "cpu"]
    assert beyond.main(["dense", *places, "--epochs", "1", "--batch", "32"]) == 0
    small = ["--seeds", "0", "--epochs", "3", "--buffer", "8", "--dual-lr", "0.1"]
    names = ["--methods", ALL_PAIRS, "two-sided", "CEAG"]
    assert beyond.main(["formulations", *places, *small, *names]) == 0
    rows = beyond_results.read(tmp_path / "beyond.json")["runs"]
    told = {row["method"]: row["multipliers"]["rows"] for row in rows}
    assert told == {ALL_PAIRS: 2, "two-sided": 4, "CEAG": 2}  # of two groups


def test_stored_rows_stay_readable() -> None:
    held = beyond_results.read(RESULTS)
    rows = [row for row in held["runs"] if row["method"] == ALL_PAIRS]
    blocks = beyond_summary.blocks({"runs": rows}, {"runs": []})
    assert {one.of for block in blocks for one in block.constraints} == {380}


# --- runs that `list` was not asked for ---


def rows_of(grid: Grid, *names: str, seeds: range = range(2), augment: bool = False) -> list[dict[str, Any]]:
    cells = cells_of(grid, names=names, seeds=seeds, augment=augment)
    held = dict.fromkeys(beyond_rows.SPLITS, 0.01)
    own = {"constraint": {"allowed": 0.02, "value": held, "feasible": dict.fromkeys(held, True)}}
    return [made_row(cell, answers(EVEN), **(own if cell.dual_lr else {})) for cell in cells]


USUAL = Grid(groups="superclass")


def told_by_list(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, int]:
    """Runs of other settings, by the flags that `list` names."""
    assert beyond.main(["list", "--results", str(path), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    others = [re.fullmatch(r" *(\d+)  (--.*)", line) for line in lines]
    told = {found[2]: int(found[1]) for found in others if found}
    heads = [line for line in lines if "runs of other settings" in line]
    assert [head.startswith(f"{sum(told.values())} runs") for head in heads] == ([True] if told else [])
    return told


def test_list_tells_runs_of_other_settings_and_the_flags_that_show_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "beyond.json"
    beyond_results.add_runs(path, rows_of(USUAL, "NFT", "CEAG"))
    assert told_by_list(path, capsys) == {}
    short = replace(USUAL, epochs=30)
    faces = Grid(dataset="utkface", groups="race", sparsity=0.925, heldout_per_class=0.2)
    beyond_results.add_runs(path, rows_of(short, "NFT", "CEAG"))
    beyond_results.add_runs(path, rows_of(replace(short, sparsity=0.98), "NFT") + rows_of(faces, "NFT"))
    race = "--dataset utkface --groups race --sparsity 0.925 --epochs 60 --heldout 0.2"
    own = "--dataset cifar100 --groups superclass --sparsity {} --epochs {} --heldout 50".format
    thirty, sparser = {own(0.95, 30): 8}, {own(0.98, 30): 2}
    assert told_by_list(path, capsys) == {**thirty, **sparser, race: 2}
    assert told_by_list(path, capsys, "--epochs", "30") == {own(0.95, 60): 8, **sparser, race: 2}
    assert told_by_list(path, capsys, *shlex.split(race)) == {own(0.95, 60): 8, **thirty, **sparser}
    for line in (own(0.95, 30), race):  # it can be typed as it stands
        assert line not in told_by_list(path, capsys, *shlex.split(line))

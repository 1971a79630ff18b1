"""Runs that diverge: they keep their last good epoch, and nobody else notices."""

import json
import logging
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from evenprune import checkpoint, methods, run_figures
from evenprune.method import Method
from evenprune.recipe import Data, Recipe, Run
from evenprune.training import Fitted, NotFinite, fit
from tests.training_cases import Stops, data_for, images, network, recipe, trained

Problem = tuple[nn.Module, Data]
WILD = methods.equalized(dual_lr=1e38, k=5, negative="keep")
TAME = replace(WILD, dual_lr=1e-3)


@pytest.fixture(scope="module")
def problem() -> Problem:
    split = images()
    model = trained(network(), split)
    return model, data_for(model, split, train=split, test=images(80, seed=5))


def runs_with(middle: Method) -> list[Run]:
    tried = (methods.nft(), middle, methods.nft_es(on="test"), methods.group_dro())
    return [Run(method=method, sparsity=0.5, seed=4) for method in tried]


def same(first: Fitted, second: Fitted) -> bool:
    pairs = zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_run_that_diverges_keeps_its_last_good_epoch_and_the_others_go_on(
    problem: Problem, caplog: Any
) -> None:
    settings = recipe(trace=True, scheduler=None)
    with caplog.at_level(logging.WARNING, logger="evenprune"):
        found = fit(*problem, runs=runs_with(WILD), recipe=settings)
    assert "run 1 of 4 (method equalized, sparsity 0.5, seed 4), by step" in caplog.text
    assert [one.diverged for one in found] == [None, 2, None, None]  # the first epoch with multipliers
    calm = fit(*problem, runs=runs_with(TAME), recipe=settings)
    for i in (0, 2, 3):
        assert same(found[i], calm[i])
        assert [row["loss"] for row in found[i].history] == [row["loss"] for row in calm[i].history]
    plain = Run(method=methods.nft(), sparsity=0.5, seed=4)  # no multiplier has acted so far
    (before,) = fit(*problem, runs=[plain], recipe=recipe(epochs=2, scheduler=None))
    assert same_values(found[1].model, before.model)
    assert len(found[1].history) == len(found[1].multipliers) == 2
    assert found[1].kept_epoch == 1
    assert found[1].trace is not None
    assert len(found[1].trace) == 0
    assert torch.equal(found[1].predictions["test"].correct, before.predictions["test"].correct)
    assert float(found[1].masks.sparsity) == pytest.approx(0.5, abs=0.01)


def same_values(first: nn.Module, second: nn.Module) -> bool:
    """Of a fleet and of a run by itself: alike but for rounding; counts of batches are of the whole fleet."""
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.allclose(a, b, atol=1e-5) for a, b in pairs if a.ndim)


@pytest.mark.parametrize("settings", [recipe(), recipe(checkpoint_steps=2)], ids=["epochs", "steps"])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_training_with_a_diverged_run_resumes_as_if_never_stopped(
    problem: Problem, tmp_path: Path, settings: Recipe, stop: int
) -> None:
    runs = runs_with(WILD)
    whole = fit(*problem, runs=runs, recipe=settings, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=runs, recipe=settings, folder=tmp_path / "cut", hooks=[Stops(after=stop)])
    cut = fit(*problem, runs=runs, recipe=settings, folder=tmp_path / "cut")
    again = fit(*problem, runs=runs, recipe=settings, folder=tmp_path / "cut")  # finished: read, not trained
    for one, two, three in zip(whole, cut, again, strict=True):
        assert same(one, two)
        assert same(one, three)
        assert one.diverged == two.diverged == three.diverged
        assert len(one.history) == len(two.history) == len(three.history)
    place = next((tmp_path / "cut").glob("001-*")) / "metrics.jsonl"
    lines, others = (
        [json.loads(line) | {"seconds": 0} for line in file.read_text().splitlines()]
        for file in (place, tmp_path / "whole" / place.parent.name / place.name)
    )
    assert lines == others
    assert [line.get("diverged") for line in lines] == [None, None, 2, 2, 2]
    assert lines[2]["loss"] is None
    assert lines[4]["loss"] > 0


def test_where_every_run_diverges_it_is_an_error_that_names_them(problem: Problem, tmp_path: Path) -> None:
    runs = [Run(method=WILD, sparsity=s, seed=4) for s in (0.5, 0.7)]
    for folder, ending in ((None, "leave these runs out."), (tmp_path, "out, in another folder.")):
        with pytest.raises(NotFinite) as caught:
            fit(*problem, runs=runs, recipe=recipe(), folder=folder)
        said = str(caught.value)
        assert "run 0 of 2 (method equalized, sparsity 0.5, seed 4), epoch 2" in said
        assert "run 1 of 2 (method equalized, sparsity 0.7, seed 4), epoch 2" in said
        assert said.endswith(ending)
        assert "checkpoint" not in said  # it is finished, there is nothing to go on from
    kept = checkpoint.load(tmp_path / "checkpoint.safetensors")
    assert kept is not None
    assert kept["epoch"] == 3  # nothing was left to train
    assert all(t.isfinite().all() for t in kept["network"].values() if t.is_floating_point())


def test_a_resting_run_stays_where_it_is_however_long_the_others_train(problem: Problem) -> None:
    """Its multipliers stay too: infinite ones, times a weight of zero, are not a number."""
    told = recipe(epochs=15, scheduler=None)
    for wild in (WILD, replace(WILD, dual_lr=3e38)):
        rows = Rows()
        found = fit(*problem, runs=runs_with(wild), recipe=told, hooks=[rows])
        assert [one.diverged for one in found] == [None, 2, None, None]
        assert len(found[1].history) == 2
        resting = [epoch[1] for epoch in rows.told[3:]]
        assert all(row["loss"] is not None for row in resting)
        assert all(value == 0 for row in resting for value in row["multipliers"])
        assert {row["diverged"] for row in resting} == {2}


def test_a_resting_run_follows_no_pass_over_held_out_samples_either() -> None:
    split = images()
    model = trained(network(), split)
    data = data_for(model, split, train=split, heldout=images(80, seed=5))
    wild = methods.equalized(dual_lr=1e38, multipliers_on="heldout", estimator="pass", refresh=1)
    rows = Rows()
    runs = [Run(method=method, sparsity=0.5, seed=4) for method in (methods.nft(), wild)]
    found = fit(model, data, runs=runs, recipe=recipe(epochs=8, scheduler=None), hooks=[rows])
    since = found[1].diverged
    assert found[0].diverged is None
    assert since is not None
    resting = [epoch[1]["multipliers"] for epoch in rows.told[since + 1 :]]
    assert len(resting) >= 3
    assert not any(value for values in resting for value in values)


class Rows:
    """A hook that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def start(self, *_: Any) -> None: ...
    def finish(self) -> None: ...
    def epoch(self, rows: Any) -> None:
        self.told.append(rows)


@pytest.mark.parametrize("every", [1, 2, 5])
def test_the_best_iterate_of_a_diverged_run_is_of_its_good_epochs(problem: Problem, every: int) -> None:
    keeps = replace(WILD, keep="best", keep_on="test")
    found = fit(*problem, runs=runs_with(keeps), recipe=recipe(evaluate_every=every))
    assert (found[1].diverged, found[1].kept_epoch, len(found[1].history)) == (2, 1, 2)


@pytest.mark.parametrize(("pruning", "every"), [(0, 1), (1, 3), (2, 3)])
def test_every_checkpoint_within_an_epoch_leads_to_the_same_end(
    problem: Problem, pruning: int, every: int
) -> None:
    """`Snapshots` stands for a kill after each save: the file as it was goes into a folder of its own."""
    settings = recipe(epochs=3, pruning_epochs=pruning, checkpoint_steps=every, scheduler=None)
    runs = runs_with(WILD)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        saves = Snapshots(home / "whole")
        with saves:
            whole = ended(lambda: fit(*problem, runs=runs, recipe=settings, folder=home / "whole"))
        assert (whole is None) == (pruning == 0)  # before the first epoch has ended nothing is good
        assert len(saves.kept) >= (1 if whole is None else 5)
        for number, saved in enumerate(saves.kept):
            folder = home / f"cut-{number}"
            folder.mkdir()
            for file, content in saved.items():
                (folder / file).write_bytes(content)
            again = ended(lambda f=folder: fit(*problem, runs=runs, recipe=settings, folder=f))
            assert (whole is None) == (again is None)
            for one, two in zip(whole or [], again or [], strict=True):
                assert one.diverged == two.diverged
                assert same(one, two)


def ended(train: Any) -> list[Fitted] | None:
    """None where the training could not go on."""
    try:
        found: list[Fitted] = train()
    except NotFinite:
        return None
    return found


class Snapshots:
    """Every checkpoint that is written to a folder, with what belongs to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept = folder, list[dict[str, bytes]]()

    def __enter__(self) -> None:
        self.save = checkpoint.save
        checkpoint.save = self._keep

    def __exit__(self, *_: Any) -> None:
        checkpoint.save = self.save

    def _keep(self, path: Path, tree: Any) -> None:
        self.save(path, tree)
        files = (path, self.folder / "experiment.json")
        self.kept.append({file.name: file.read_bytes() for file in files})


class Scaled(nn.Module):
    """With a parameter that is a single number, and a state that is no tensor: it trains alone."""

    def __init__(self, within: nn.Module) -> None:
        super().__init__()
        self.within, self.scale = within, nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.scale * self.within(x)
        return logits

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 2}

    def set_extra_state(self, state: Any) -> None: ...


def test_single_numbers_go_back_as_well_and_other_state_is_left_alone(problem: Problem) -> None:
    model, data = problem
    found = fit(Scaled(model), data, runs=runs_with(WILD)[:2], recipe=recipe())
    assert [one.diverged for one in found] == [None, 2]
    assert all(tensor.isfinite().all() for one in found for tensor in one.model.parameters())


def test_seconds_are_those_of_all_epochs_once(problem: Problem) -> None:
    found = fit(*problem, runs=runs_with(WILD), recipe=recipe())
    assert run_figures.seconds(found) == pytest.approx(sum(row["seconds"] for row in found[0].history))


def test_a_run_that_cannot_be_widened_with_others_does_not_stop_them(problem: Problem) -> None:
    found = fit(*problem, runs=runs_with(WILD), recipe=recipe(fleet_size=1))
    assert [one.diverged for one in found] == [None, 2, None, None]
    assert [len(one.history) for one in found] == [5, 2, 5, 5]


def test_before_pruning_has_ended_there_is_nothing_to_keep(problem: Problem, tmp_path: Path) -> None:
    runs = [Run(method=methods.nft(), sparsity=0.5), Run(method=methods.nft(), sparsity=0.6)]
    hot = recipe(optimizer=partial(SGD, lr=1e30))
    with pytest.raises(
        NotFinite, match=r"not finite in epoch 0:\n- run 0 of 2 .*, by step \d+ of 5\n- run 1"
    ):
        fit(*problem, runs=runs, recipe=hot, folder=tmp_path)
    assert not (tmp_path / "checkpoint.safetensors").exists()

"""Runs that are the same until pruning ends: trained once until then, they end as if each had been alone."""

import multiprocessing
import os
import signal
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, AdamW

from evenprune import methods
from evenprune.method import Method
from evenprune.recipe import Run
from evenprune.shared_start import EARLY, beginners, can_be_handed_over, start_of, starts
from evenprune.trackers import Hook
from evenprune.training import Fitted, fit
from tests.training_cases import Stops, data_for, images, precisely, recipe

DENSE, TRAIN = precisely()
TEST, HELD = (images(60, seed=seed, dtype=torch.float64) for seed in (2, 3))
DATA = data_for(DENSE, TRAIN, test=TEST, heldout=HELD)
CEAG = methods.ceag(tolerance=0.01, dual_lr=0.5, k=3)
PAIRS = methods.pairwise(tolerance=0.0, dual_lr=0.1, k=3)
ALIKE = (methods.nft(), CEAG, methods.el_rb(dual_lr=0.01, k=3), methods.group_dro(), PAIRS)
HELDOUT = methods.ceag(tolerance=0.0, dual_lr=0.5, multipliers_on="heldout", estimator="pass", refresh=2)
GRAPE, WEIGHTED = methods.fairgrape(fast=True), methods.performance_weighted()
APART = (methods.kd(distill=0.5), methods.balanced(), GRAPE, WEIGHTED)


def runs_of(*every: Method, seeds: int = 2, sparsities: tuple[float, ...] = (0.5,)) -> list[Run]:
    return [Run(method=m, sparsity=s, seed=seed) for m in every for s in sparsities for seed in range(seeds)]


def both(runs: list[Run], **changes: Any) -> list[tuple[Fitted, Fitted]]:
    """Trained together from a shared start, and each of them for all epochs."""
    told = [fit(DENSE, DATA, runs=runs, recipe=recipe(share_pruning=s, **changes)) for s in (True, False)]
    return list(zip(*told, strict=True))


def near(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def assert_same(one: Fitted, other: Fitted) -> None:
    assert one.run == other.run
    for name, tensor in other.model.state_dict().items():
        torch.testing.assert_close(one.model.state_dict()[name], tensor, rtol=0, atol=1e-9, msg=name)
    for mask, slow in zip(one.masks.buffers(), other.masks.buffers(), strict=True):
        assert torch.equal(mask, slow)
    torch.testing.assert_close(one.multipliers, other.multipliers, rtol=0, atol=1e-9)
    assert one.multipliers.shape == other.multipliers.shape
    for row, slow in zip(one.history, other.history, strict=True):
        assert set(row) == set(slow)
        for name in ("loss", "accuracy", "sparsity", "learning_rate", "max_excess_gap", "multiplier_sum"):
            assert near(row[name]) == near(slow[name]), name
        assert near(row["splits"]["test"]["accuracy"]) == near(slow["splits"]["test"]["accuracy"])
    assert torch.equal(one.predictions["test"].predictions, other.predictions["test"].predictions)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": lambda groups: AdamW(groups, lr=0.01)},
        {"pruning_epochs": 1},
        {"scheduler_steps": "batch", "augment": None},
        {"trace": True},
    ],
    ids=["plain", "AdamW", "one pruning", "rate by batch", "trace"],
)
def test_runs_end_as_if_each_had_trained_alone(changes: dict[str, Any]) -> None:
    runs = runs_of(*ALIKE, HELDOUT, *APART, sparsities=(0.5, 0.7))
    assert len(beginners(runs, starts(runs))) == 4 * (1 + len(APART))
    for one, other in both(runs, **changes):
        assert_same(one, other)
        assert (one.trace is None) == (other.trace is None)


def test_pruning_may_last_to_the_end() -> None:
    for one, other in both(runs_of(methods.nft(), methods.group_dro()), epochs=2):
        assert_same(one, other)


def test_one_start_becomes_a_fleet() -> None:
    """Of a network that is not widened, one that is."""
    for one, other in both(runs_of(*ALIKE, seeds=1)):
        assert_same(one, other)


def test_nothing_is_shared_where_all_differ_or_nothing_is_pruned_step_by_step() -> None:
    early = (CEAG, replace(CEAG, while_pruning=True))
    some = ((runs_of(CEAG, seeds=3), {}), (runs_of(*ALIKE), {"pruning_epochs": 0}), (runs_of(*early), {}))
    for runs, changes in some:
        for one, other in both(runs, **changes):
            assert torch.equal(one.model[0].weight, other.model[0].weight)


def test_constraints_begin_for_each_run_by_itself_and_are_there_again_after_a_kill(tmp_path: Path) -> None:
    """Stopped between two prunings, when the multipliers of one run have begun to move."""
    runs = runs_of(CEAG, replace(CEAG, while_pruning=True), methods.nft(), seeds=1)
    settings = recipe(pruning_epochs=3)
    together = fit(DENSE, DATA, runs=runs, recipe=settings)
    for run, one in zip(runs, together, strict=True):
        (alone,) = fit(DENSE, DATA, runs=[run], recipe=settings)
        assert_same(one, alone)
    moved = [bool(one.multipliers[1].any()) for one in together]
    assert moved == [False, True, False]
    with pytest.raises(KeyboardInterrupt):
        fit(DENSE, DATA, runs=runs, recipe=settings, folder=tmp_path, hooks=[Stops(after=1)])
    for one, again in zip(
        together, fit(DENSE, DATA, runs=runs, recipe=settings, folder=tmp_path), strict=True
    ):
        assert_same(again, one)


METHODS = st.sampled_from([*ALIKE, HELDOUT, *APART])


@given(
    st.lists(
        st.builds(Run, method=METHODS, sparsity=st.sampled_from([0.5, 0.6]), seed=st.integers(0, 2)),
        min_size=1,
    )
)
def test_every_run_has_a_beginner_with_its_start(runs: list[Run]) -> None:
    of = starts(runs)
    first = beginners(runs, of)
    assert [start_of(first[place]) for place in of] == [start_of(run) for run in runs]
    assert len({start_of(run) for run in first}) == len(first)


def test_every_field_of_a_method_is_known_to_act_before_the_end_of_pruning_or_not() -> None:
    """A new one must be put into one of two lists: one that acts early and is forgotten would merge runs."""
    late = (
        "name measure against_dense rows kind estimator tolerance dual_lr k overall negative mean side dual"
    )
    late += " kp ki nu multipliers_on refresh moves_on caution dead_zone keep keep_on"
    never_shared = "while_pruning"
    assert {field.name for field in fields(Method)} == {*late.split(), *EARLY, never_shared}
    assert not {*late.split()} & {*EARLY}


# --- optimizers ---


class Odd(SGD):
    """Plain steps; what it remembers is of no use to runs that take over."""

    def __init__(self, params: Any, memory: str) -> None:
        super().__init__(params, lr=0.05)
        self.memory = memory

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # without a closure
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                kept = {"list": [p.grad.clone()], "dict": {"m": p.grad.clone()}, "flat": p.grad.flatten()}
                if self.memory in kept:
                    self.state[p]["m"] = kept[self.memory]
        if self.memory == "whole":
            self.state["all"]["steps"] = 1


@pytest.mark.parametrize("memory", ["list", "dict", "flat", "whole", "none"])
def test_optimizers_that_cannot_be_handed_over_train_every_run_by_itself(memory: str) -> None:
    odd = partial(Odd, memory=memory)
    assert can_be_handed_over(recipe(optimizer=odd)) == (memory == "none")
    for one, other in both(runs_of(methods.nft(), CEAG), optimizer=odd):
        assert_same(one, other)


# --- kills ---


class Dies(Hook):
    def __init__(self, after: int) -> None:
        self.left = after

    def epoch(self, rows: list[dict[str, Any]]) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def train_in(folder: Path, after: int | None) -> list[Fitted]:
    hooks = [] if after is None else [Dies(after)]
    saved = recipe(checkpoint_steps=2, pruning_epochs=3)
    return fit(DENSE, DATA, runs=runs_of(*ALIKE, seeds=1), recipe=saved, folder=folder, hooks=hooks)


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL on Windows")
@pytest.mark.parametrize("after", [1, 3, 4])  # while pruning, when it has ended, later
def test_killed_trainings_go_on_and_end_as_if_they_had_not_been(tmp_path: Path, after: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=train_in, args=(tmp_path / "killed", after))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for one, other in zip(
        train_in(tmp_path / "killed", None), train_in(tmp_path / "whole", None), strict=True
    ):
        for name, tensor in other.model.state_dict().items():
            assert torch.equal(one.model.state_dict()[name], tensor), name
        assert [row["loss"] for row in one.history] == [row["loss"] for row in other.history]

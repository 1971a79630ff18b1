"""Checkpoints: nothing lost, nothing mixed; killed, cut, changed, foreign and too large for the disk."""

import copy
import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, OneCycleLR, SequentialLR

from evenprune import atomic, checkpoint, methods
from evenprune.checkpoint import CheckpointError, DifferentExperiment
from evenprune.identity import identify
from evenprune.method import Method
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.resume import load_optimizer
from evenprune.training import Fitted, fit
from tests.commands import largest_file
from tests.training_cases import data_for, images, network, recipe, trained

RUNS = [
    Run(method=methods.ceag(tolerance=0.0, dual_lr=0.3, k=5), sparsity=0.7, seed=0),
    Run(method=methods.nft_es(on="test"), sparsity=0.5, seed=1),
    Run(method=methods.celg(tolerance=0.0, dual_lr=0.1, estimator="table"), sparsity=0.6, seed=2),
]


STEPS_TO_LIVE: list[int] = []  # not in the augmentation: its attributes are part of the experiment


class KillAt:
    """An augmentation that changes next to nothing, and kills its own process when its steps are used up."""

    draws = 1

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        if STEPS_TO_LIVE:
            STEPS_TO_LIVE[0] -= 1
            if STEPS_TO_LIVE[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return inputs * (1 + 0.1 * (uniform[:, 0] - 0.5)).view(-1, 1, 1, 1)


def kill_in_write(write: int, *, before_replace: bool) -> None:
    """Let this process die in its n-th write: before the new file takes its place, or right after."""
    replace, left = os.replace, [write]

    def dying(source: Any, target: Any) -> None:
        left[0] -= 1
        if left[0] < 0 and before_replace:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    atomic.os.replace = dying  # type: ignore[assignment]


def two_cycles(optimizer: Optimizer, total: int) -> SequentialLR:
    first, second = LinearLR(optimizer, 0.5, total_iters=4), MultiStepLR(optimizer, [3, 9], gamma=0.3)
    return SequentialLR(optimizer, [first, second], milestones=[total // 2])


def train(folder: Path | None, *, kill: Any = None, adam: bool = False) -> list[Fitted]:
    """The same training every time, but for the moment at which it is killed."""
    split = images()
    model = trained(network(dropout=0.3), split)
    data = data_for(model, split, test=images(60, seed=5))
    changes: dict[str, Any] = {"scheduler": two_cycles, "scheduler_steps": "batch"}
    if adam:
        changes = {"optimizer": partial(AdamW, lr=0.01), "channels_last": True, "clip_norm": 1.0}
    if isinstance(kill, tuple):
        kill_in_write(kill[0], before_replace=kill[1])
    STEPS_TO_LIVE[:] = [kill] if isinstance(kill, int) else []
    told = recipe(epochs=4, pruning_epochs=1, checkpoint_steps=2, augment=KillAt(), **changes)
    return fit(model, data, runs=RUNS, recipe=told, folder=folder)


def same(first: list[Fitted], second: list[Fitted]) -> bool:
    """Bit for bit: weights, statistics, masks, answers, and every number of the history."""
    return all(
        same_tensors(a.model.state_dict(), b.model.state_dict())
        and same_tensors(a.masks.state_dict(), b.masks.state_dict())
        and torch.equal(a.multipliers, b.multipliers)
        and torch.equal(a.predictions["test"].losses, b.predictions["test"].losses)
        and a.kept_epoch == b.kept_epoch
        and without_seconds(a.history) == without_seconds(b.history)
        for a, b in zip(first, second, strict=True)
    )


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def without_seconds(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in history]


@pytest.fixture(scope="module")
def never_killed() -> list[Fitted]:
    return train(None)


@pytest.fixture(scope="module")
def processes() -> Any:
    """Children of a server that has imported everything already, and has used none of torch's threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["evenprune.training", "evenprune.methods", "torch._dynamo", "hypothesis", "pytest"]
    )
    return context


def run_until_killed(processes: Any, folder: Path, **how: Any) -> int:
    child = processes.Process(target=train, args=(folder,), kwargs=how)
    child.start()
    child.join()
    return int(child.exitcode)


# Each process dies at the named moment of what the one before it left: (n-th write, before or after it took
# its place) or n-th step. Four epochs of five steps; a checkpoint after steps 2, 4 and 5 of every epoch.
MOMENTS = [1, 3, (5, True), 4, 3, (4, False), 4]


@pytest.mark.slow
def test_killed_at_many_moments_it_ends_as_if_never_killed(
    tmp_path: Path, processes: Any, never_killed: list[Fitted]
) -> None:
    reached = []
    for moment in MOMENTS:
        assert run_until_killed(processes, tmp_path, kill=moment) == -signal.SIGKILL
        saved = checkpoint.load(tmp_path / "checkpoint.safetensors")
        reached.append((saved["epoch"], saved["step"]) if saved else (0, 0))
    assert reached == sorted(reached)
    assert len(set(reached)) > 3
    assert any(epoch > 1 and step > 0 for epoch, step in reached), "one kill while the constraints act"
    resumed = train(tmp_path)
    assert same(resumed, never_killed)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_killed_at_any_time_it_ends_as_if_never_killed(tmp_path: Path, processes: Any) -> None:
    expected = train(None, adam=True)
    delay = 0.2
    while True:
        child = processes.Process(target=train, args=(tmp_path,), kwargs={"adam": True})
        child.start()
        child.join(delay)
        if child.exitcode is not None:
            break
        child.kill()
        child.join()
        delay *= 1.7
    assert child.exitcode == 0
    assert same(train(tmp_path, adam=True), expected)


def test_a_resumed_training_is_the_same_and_a_finished_one_is_not_trained_again(
    tmp_path: Path, never_killed: list[Fitted]
) -> None:
    assert same(train(tmp_path), never_killed)
    written = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns
    assert same(train(tmp_path, kill=0), never_killed)  # a single step would kill this process
    assert (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns == written


def test_metrics_are_whole_after_a_resume(tmp_path: Path, processes: Any, never_killed: list[Fitted]) -> None:
    assert run_until_killed(processes, tmp_path, kill=13) == -signal.SIGKILL
    train(tmp_path)
    (place,) = tmp_path.glob("000-*/metrics.jsonl")
    rows = [json.loads(line) for line in place.read_text().splitlines()]
    assert without_seconds(rows) == without_seconds(never_killed[0].history)


def start(folder: Path, *, model: Any = None, data: Data | None = None, **changes: Any) -> list[Fitted]:
    split = images()
    model = model or trained(network(), split)
    runs = changes.pop("runs", RUNS[:1])
    data = data or data_for(model, split, test=images(60, seed=5))
    return fit(model, data, runs=runs, recipe=recipe(**changes), folder=folder)


def test_another_experiment_is_refused_with_what_differs(tmp_path: Path) -> None:
    start(tmp_path, epochs=3)
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    split = images()
    other = split.labels.clone()
    other[0] = (other[0] + 1) % 4
    model = trained(network(), split)
    relabelled = replace(
        data_for(model, split, test=images(60, seed=5)), train=Split(split.inputs, other, split.groups)
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"epochs": 4}, "recipe.epochs: 3 against 4"),
        (
            {"epochs": 3, "optimizer": partial(SGD, lr=0.1, momentum=0.9)},
            "recipe.optimizer.lr: 0.05 against 0.1",
        ),
        ({"epochs": 3, "runs": RUNS[1:2]}, 'runs[0].method.name: "ceag" against "nft_es"'),
        ({"epochs": 3, "runs": RUNS}, "runs: 1 items against 3 items"),
        ({"epochs": 3, "data": relabelled}, "training data.labels: "),
        ({"epochs": 3, "model": trained(network(), split, epochs=6)}, "dense weights: "),
    ]
    for changes, expected in cases:
        with pytest.raises(DifferentExperiment) as caught:
            start(tmp_path, **changes)
        assert expected in str(caught.value)
        assert str(tmp_path) in str(caught.value)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    start(tmp_path, epochs=3, checkpoint_steps=3, evaluate_batch=7)  # these change no result


BEFORE = {  # what a method was told by before moves_on, dead_zone and targets could be chosen
    "measure": "accuracy", "against_dense": True, "rows": "mean", "kind": "at_most", "estimator": "ring",
    "tolerance": 0.0, "dual_lr": 0.3, "k": 5, "overall": "micro", "negative": "clip", "mean": "lagrangian",
    "side": "estimate", "dual": "sgd", "kp": 0.0, "ki": 1.0, "nu": 0.0, "multipliers_on": None, "refresh": 0,
    "caution": 0.0, "distill": 0.0, "temperature": 4.0, "focus": 0.0, "floor": 0.0, "sampling": "uniform",
    "keep": "last", "keep_on": None, "importance": "magnitude",
}  # fmt: skip
CAUTIOUS = {"multipliers_on": "heldout", "estimator": "pass", "refresh": 5, "caution": 1.0}


def as_before(changes: dict[str, Any]) -> dict[str, Any]:
    return {"name": "ceag"} | BEFORE | {name: value for name, value in changes.items() if name in BEFORE}


@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({}, None),
        ({"distill": 0.5}, None),
        ({"dead_zone": 0.01}, "dead_zone: null against 0.01"),
        ({"targets": "corrected"}, 'targets: null against "corrected"'),
        (CAUTIOUS, 'moves_on: null against "estimate"'),
        (CAUTIOUS | {"moves_on": "lower"}, 'moves_on: null against "lower"'),
        ({"focus": 1.0, "floor": 0.5}, 'targets: null against "labels"'),
        ({"keep": "feasible", "keep_on": "test"}, 'feasible: null against "if none is, the most accurate'),
        ({"sampling": "balanced"}, 'balanced: null against "every sample as often as'),
    ],
)
def test_a_folder_from_before_some_choices_resumes_where_they_change_nothing(
    tmp_path: Path, changes: dict[str, Any], differs: str | None
) -> None:
    split, model = images(), network()
    method = Method(**{"name": "ceag", "dual_lr": 0.3, "k": 5} | changes)
    runs = [Run(method=method, sparsity=0.7)]
    now = identify(model, data_for(model, split, test=split), runs=runs, recipe=recipe())
    before = copy.deepcopy(now)
    before["runs"][0]["method"] = as_before(changes)
    checkpoint.claim(tmp_path, before)
    if differs is None:
        checkpoint.claim(tmp_path, now)
        assert json.dumps(now) == json.dumps(before)  # which is what the checkpoints in it are known by
    else:
        with pytest.raises(DifferentExperiment, match=re.escape(f"runs[0].method.{differs}")):
            checkpoint.claim(tmp_path, now)


@pytest.mark.parametrize("changes", [{}, CAUTIOUS, {"focus": 1.0, "floor": 0.5}])
def test_a_folder_from_before_constraints_could_act_while_pruning_resumes(changes: dict[str, Any]) -> None:
    split, model = images(), network()
    method = Method(**{"name": "ceag", "dual_lr": 0.3, "k": 5} | changes)
    told = identify(model, data_for(model, split), runs=[Run(method=method, sparsity=0.7)], recipe=recipe())
    assert "while_pruning" not in told["runs"][0]["method"]
    if not changes:
        early = Run(method=replace(method, while_pruning=True), sparsity=0.7)
        other = identify(model, data_for(model, split), runs=[early], recipe=recipe())
        assert other["runs"][0]["method"]["while_pruning"] is True


def test_a_checkpoint_that_was_cut_or_changed_is_refused(tmp_path: Path) -> None:
    start(tmp_path, epochs=3)
    place = tmp_path / "checkpoint.safetensors"
    whole = place.read_bytes()
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    for damaged in (b"", whole[:5], whole[: len(whole) // 2], bytes(flipped), b"\x00" * 300):
        place.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors cannot be read.*remove it"):
            start(tmp_path, epochs=3)
    place.write_bytes(whole)
    start(tmp_path, epochs=3)


def test_a_file_that_may_not_grow_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint.safetensors"
    checkpoint.save(place, {"weights": torch.ones(1000)})
    untouched = r"needs 0\.40 MB.*last good checkpoint is untouched"
    with largest_file(20_000), pytest.raises(CheckpointError, match=untouched) as caught:
        checkpoint.save(place, {"weights": torch.ones(100_000)})
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    saved = checkpoint.load(place)
    assert saved is not None
    assert torch.equal(saved["weights"], torch.ones(1000))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_a_full_disk_stops_the_training_and_more_room_resumes_it(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        runs = folder / "runs"
        filler = folder / "filler"
        filler.write_bytes(b"x" * (shutil.disk_usage(folder).free - 24_000))
        with pytest.raises(
            CheckpointError, match=r"No room for the checkpoint.*Free some space and start again"
        ):
            start(runs, epochs=3)
        filler.unlink()
        resumed = start(runs, epochs=3)
        assert same_tensors(
            resumed[0].model.state_dict(), start(tmp_path / "roomy", epochs=3)[0].model.state_dict()
        )
    finally:
        subprocess.run(["umount", str(folder)], check=True)


numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
tensors = st.sampled_from(
    [
        torch.arange(6).view(2, 3),
        torch.tensor(1.5, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
    ]
)
trees = st.recursive(
    numbers | tensors,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
        | st.dictionaries(st.integers(0, 9), st.integers(1, 3), max_size=3).map(Counter)
    ),
    max_leaves=8,
)


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


@given(trees)
@settings(max_examples=60)
def test_any_tree_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    place = tmp_path_factory.getbasetemp() / "tree.safetensors"
    checkpoint.save(place, {"tree": tree})
    loaded = checkpoint.load(place)
    assert loaded is not None
    assert equal(loaded["tree"], tree)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"cannot hold scheduler\.anneal, a function"):
        checkpoint.save(tmp_path / "x", {"scheduler": {"anneal": equal}})
    with pytest.raises(TypeError, match=r"the key \(1, 2\) of state"):
        checkpoint.save(tmp_path / "x", {"state": {(1, 2): 0}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "make",
    [
        partial(Adam, lr=0.1, amsgrad=True),
        partial(Adam, lr=torch.tensor(0.1), capturable=False, foreach=False),
        partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
        partial(torch.optim.Adafactor, lr=0.01),
        partial(torch.optim.NAdam, lr=0.01),
    ],
)
def test_any_optimizer_goes_on_as_it_would_have(make: Any, tmp_path: Path) -> None:
    def step(optimizer: Optimizer, weight: Tensor) -> None:
        def loss() -> Tensor:
            optimizer.zero_grad()
            value = ((weight - 1) ** 4).sum()
            value.backward()
            return value

        optimizer.step(loss)

    def begin() -> tuple[Optimizer, Tensor]:
        weight = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last).requires_grad_()
        return make([weight]), weight

    through, kept = begin()
    for _ in range(3):
        step(through, kept)
    checkpoint.save(tmp_path / "o", {"optimizer": through.state_dict(), "weight": kept})
    again, resumed = begin()
    saved = checkpoint.load(tmp_path / "o")
    assert saved is not None
    with torch.no_grad():
        resumed.copy_(saved["weight"])
    rate = again.param_groups[0]["lr"]
    load_optimizer(again, saved["optimizer"])
    assert again.param_groups[0]["lr"] is rate or not isinstance(rate, Tensor)
    for _ in range(3):
        step(through, kept)
        step(again, resumed)
    assert torch.equal(kept, resumed)


def test_schedulers_with_inner_schedulers_and_counters_are_saved(tmp_path: Path) -> None:
    def begin(make: Any) -> tuple[Optimizer, Any]:
        optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
        return optimizer, make(optimizer, 12)

    for make in (two_cycles, lambda o, total: OneCycleLR(o, 0.1, total_steps=total)):
        optimizer, scheduler = begin(make)
        rates = []
        for step in range(10):
            optimizer.step()
            scheduler.step()
            rates.append(scheduler.get_last_lr())
            if step == 4:
                checkpoint.save(tmp_path / "s", {"s": scheduler.state_dict(), "o": optimizer.state_dict()})
        optimizer, scheduler = begin(make)
        saved = checkpoint.load(tmp_path / "s")
        assert saved is not None
        load_optimizer(optimizer, saved["o"])
        scheduler.load_state_dict(saved["s"])
        for step in range(5, 10):
            optimizer.step()
            scheduler.step()
            assert scheduler.get_last_lr() == rates[step]


def test_recipes_are_described_by_what_they_mean() -> None:
    first = checkpoint.describe(Recipe(optimizer=partial(SGD, lr=0.1)))
    assert first == checkpoint.describe(Recipe(optimizer=partial(SGD, lr=0.1)))
    assert first["optimizer"] == {"calls": "torch.optim.sgd.SGD", "lr": 0.1}
    found = list(checkpoint.differences(first, checkpoint.describe(Recipe(optimizer=partial(Adam, lr=0.1)))))
    assert found == ['optimizer.calls: "torch.optim.sgd.SGD" against "torch.optim.adam.Adam"']


def with_rate(rate: float) -> Any:
    return lambda groups: SGD(groups, lr=rate)


class Noise:
    draws = 1

    def __init__(self, size: float) -> None:
        self.size, self.used, self.itself = size, {"b", "a"}, self

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        return inputs + self.size * uniform.view(-1, 1, 1, 1)


RATE = 0.1


def read_from_module(groups: Any) -> Optimizer:
    return SGD(groups, lr=RATE)


def described(**changes: Any) -> str:
    return json.dumps(checkpoint.describe(Recipe(**changes)), sort_keys=True)


def test_what_a_function_closes_over_computes_and_reads_tells_recipes_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert described(optimizer=with_rate(0.1)) == described(optimizer=with_rate(0.1))
    assert described(optimizer=with_rate(0.1)) != described(optimizer=with_rate(0.2))
    in_code = [lambda g: SGD(g, lr=0.1), lambda g: SGD(g, lr=0.001), lambda g, lr=0.1: SGD(g, lr=lr)]
    in_code += [lambda g: [SGD(p, lr=0.1) for p in g], lambda g: (lambda h: SGD(h, lr=0.1))(g)]
    in_code += [lambda g: (lambda h: SGD(h, lr=0.3))(g), lambda g: Adam(g, lr=0.1)]
    assert len({described(optimizer=f) for f in in_code}) == len(in_code)
    before = described(optimizer=read_from_module)
    monkeypatch.setitem(globals(), "RATE", 0.2)
    assert described(optimizer=read_from_module) != before


def test_attributes_tell_objects_apart() -> None:
    assert described(augment=Noise(0.1)) == described(augment=Noise(0.1))
    assert described(augment=Noise(0.1)) != described(augment=Noise(0.2))
    assert checkpoint.describe(Noise(0.1).__call__) != checkpoint.describe(Noise(0.2).__call__)


DESCRIBE = """
import json, torch
from evenprune import checkpoint
class Slots:
    __slots__ = ("kind", "plain")
    def __init__(self): self.kind, self.plain = torch.float32, object()
def make(names): return lambda g: g in {"b", "a", "c"} and names
print(json.dumps(checkpoint.describe([make({"x", "y", "z"}), Slots(), torch.relu, {"k": make}])))
print(checkpoint.structure(torch.nn.Sequential(torch.nn.ReLU())))
"""


@pytest.mark.slow
def test_descriptions_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Here and in another, where sets have another order."""
    exec(DESCRIBE, {"__name__": "__main__"})
    said = capsys.readouterr().out
    other = subprocess.run(
        [sys.executable, "-c", DESCRIBE],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == said
    assert "0x7" not in said


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


class WithRelu(Functional):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.layer(inputs))


class WithTanh(Functional):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.layer(inputs))


def test_a_changed_experiment_never_returns_the_result_of_the_one_before(tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"optimizer": with_rate(0.1)}, {"optimizer": with_rate(0.001)}, "recipe.optimizer.closure"),
        ({"augment": Noise(0.1)}, {"augment": Noise(0.2)}, "recipe.augment.size: 0.1 against 0.2"),
    ]
    split = images()
    model = trained(network(), split)
    other = copy.deepcopy(model)
    other[2] = nn.Tanh()
    data = data_for(model, split, test=split)
    changes.append(({"model": model, "data": data}, {"model": other, "data": data}, "structure: "))
    for i, (first, second, told) in enumerate(changes):
        start(tmp_path / str(i), epochs=3, **first)
        start(tmp_path / str(i), epochs=3, **first)
        with pytest.raises(DifferentExperiment, match=re.escape(told)):
            start(tmp_path / str(i), epochs=3, **second)


def test_how_a_model_computes_is_part_of_its_structure() -> None:
    one, other = WithRelu(), WithTanh()
    other.__class__.__qualname__ = other.__class__.__name__ = "WithRelu"
    assert str(one) == str(other)
    assert checkpoint.structure(one) == checkpoint.structure(WithRelu())
    assert checkpoint.structure(one) != checkpoint.structure(other)


def test_large_data_are_told_apart_by_a_sample_of_rows() -> None:
    data = torch.zeros(5000, 2)
    shifted = data + 1
    assert checkpoint.fingerprint(data) != checkpoint.fingerprint(shifted)
    assert checkpoint.fingerprint(data) == checkpoint.fingerprint(data.clone())
    assert checkpoint.fingerprint(data) != checkpoint.fingerprint(data.double())
    labels = torch.zeros(5000, dtype=torch.int64)
    changed = labels.clone()
    changed[4321] = 1
    assert checkpoint.fingerprint(labels) != checkpoint.fingerprint(changed)  # labels are read in full


def test_time_stands_in_no_result(never_killed: list[Fitted]) -> None:
    time.sleep(0.01)
    assert same(train(None), never_killed)

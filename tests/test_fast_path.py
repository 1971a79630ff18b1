"""What makes training fast must not change what it finds: compiled, streamed, traced, evaluated late."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR

from evenprune import epochs, methods
from evenprune import loop as loops
from evenprune.augment import Both, Crop, Flip
from evenprune.compiling import compiles
from evenprune.fleet import single, widen
from evenprune.models import cifar_resnet56
from evenprune.recipe import Data, Recipe, Run
from evenprune.replay import Replay
from evenprune.tally import InputProblems
from evenprune.trackers import Hook
from evenprune.training import Fitted, fit
from tests.kernel_process import needs_triton
from tests.training_cases import Stops, data_for, images, network, recipe, trained

METHODS = {
    "nft": methods.nft(),
    "el": methods.el(dual_lr=0.05),
    "el_rb": methods.el_rb(dual_lr=0.05, k=4),
    "ceag": methods.ceag(tolerance=0.01, dual_lr=0.05, k=4, negative="keep"),
    "ceag_no_rb": methods.ceag_no_rb(tolerance=0.01, dual_lr=0.05),
    "table": methods.ceag(tolerance=0.01, dual_lr=0.05, estimator="table"),
    "pairwise": methods.pairwise(tolerance=0.05, dual_lr=0.05, k=4),
}
AUGMENT = Both(Crop(1), Flip())
RUNS = [Run(method=method, sparsity=0.5, seed=seed) for seed, method in enumerate(METHODS.values())]


@pytest.fixture(scope="module")
def problem() -> tuple[torch.nn.Module, Data]:
    train = images(120)
    model = trained(network(), train)
    return model, data_for(model, train, train=train, test=images(60, seed=5))


@pytest.fixture(scope="module")
def augmented(problem: tuple[torch.nn.Module, Data]) -> list[Fitted]:
    """What the fast ways are compared with."""
    return fitted(problem, augment=AUGMENT)


def fitted(problem: tuple[torch.nn.Module, Data], *runs: Run, **changes: Any) -> list[Fitted]:
    return fit(*problem, runs=runs or RUNS, recipe=recipe(**changes))


def weights(one: Fitted) -> Tensor:
    return torch.cat([t.flatten() for t in one.model.state_dict().values() if t.is_floating_point()])


def assert_same(left: list[Fitted], right: list[Fitted], *, within: float = 0.0) -> None:
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=within)
        torch.testing.assert_close(a.multipliers, b.multipliers, rtol=0, atol=within)
        assert all(torch.equal(a.masks[layer.name], b.masks[layer.name]) for layer in a.masks.layers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # of torch's own import
def test_compiled_training_is_plain_training(
    problem: tuple[torch.nn.Module, Data], augmented: list[Fitted]
) -> None:
    assert_same(augmented, fitted(problem, augment=AUGMENT, compile=True), within=2e-5)


def test_what_cannot_be_compiled_trains_plainly(
    problem: tuple[torch.nn.Module, Data], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: Any) -> Any:
        raise ValueError("this compiler has had enough")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=refuses))
    torch._dynamo.reset()
    with caplog.at_level("WARNING", logger="evenprune"):
        found = fitted(problem, RUNS[3], compile=True)
    assert_same(fitted(problem, RUNS[3]), found)
    assert "this compiler has had enough" in caplog.text
    assert "Recipe(compile=False)" in caplog.text


def test_every_fleet_is_compiled(
    problem: tuple[torch.nn.Module, Data], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch keeps eight compilations of one function (here: two): one more fleet must not train without."""
    compilations: list[int] = []

    def counting(graph: Any, _: Any) -> Any:
        compilations.append(1)
        return graph.forward

    class Fleets(Hook):
        def finish(self) -> None:
            by_fleet.append(len(compilations) - sum(by_fleet))

    by_fleet: list[int] = []
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=seed) for seed in range(6)]
    told = recipe(epochs=1, pruning_epochs=1, compile=True, fleet_size=2)
    with torch._dynamo.config.patch(recompile_limit=2):
        fit(*problem, runs=runs, recipe=told, hooks=[Fleets()])
    assert by_fleet == [1, 1, 1]  # the forward pass of each; masks need one kernel as they are


@pytest.mark.parametrize("steps", [1, 2, 100])
def test_inputs_that_stay_with_the_host_are_the_same_inputs(
    problem: tuple[torch.nn.Module, Data],
    augmented: list[Fitted],
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    bytes_of_a_step = len(RUNS) * 24 * 36 * 4
    monkeypatch.setattr(loops, "WINDOW_BYTES", steps * bytes_of_a_step)
    monkeypatch.setattr(loops, "_stays", lambda *_: True)
    assert_same(augmented, fitted(problem, augment=AUGMENT, data_on_device=False))


def test_a_streamed_training_that_stopped_within_a_chunk_resumes(
    problem: tuple[torch.nn.Module, Data], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(loops, "WINDOW_BYTES", 2 * 24 * 36 * 4)  # chunks of two of five steps
    monkeypatch.setattr(loops, "_stays", lambda *_: True)
    whole = fitted(problem, RUNS[3])
    saving = recipe(checkpoint_steps=3)
    monkeypatch.setattr(loops.Loop, "steps", property(lambda _: 4))  # stops after the checkpoint of step 3
    with pytest.raises(KeyboardInterrupt):
        fit(
            *problem,
            runs=[RUNS[3]],
            recipe=replace(saving, checkpoint_epochs=9),
            folder=tmp_path,
            hooks=[Stops(0)],
        )
    monkeypatch.setattr(loops.Loop, "steps", property(lambda loop: loop.recipe.steps(len(loop.train))))
    assert_same(whole, fit(*problem, runs=[RUNS[3]], recipe=saving, folder=tmp_path))


def test_the_trace_holds_the_multipliers_of_every_step(problem: tuple[torch.nn.Module, Data]) -> None:
    for one in fitted(problem, trace=True, epochs=4):
        rows = one.multipliers.shape[1]
        assert one.trace is not None
        assert one.trace.shape == (10, rows)  # two epochs of five steps after two of pruning
        torch.testing.assert_close(one.trace[4::5], one.multipliers[2:], rtol=0, atol=0)
        assert not rows or bool(one.trace.diff(dim=0).any())
    assert fitted(problem, RUNS[0])[0].trace is None


def test_a_training_resumed_within_an_epoch_keeps_its_trace(
    problem: tuple[torch.nn.Module, Data], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    whole = fitted(problem, RUNS[3], trace=True)[0]
    saving, step = recipe(trace=True, checkpoint_steps=2), loops.advance

    def dies(loop: Any, at: int, epoch: int) -> None:
        if (epoch, at) == (3, 3):
            raise KeyboardInterrupt
        step(loop, at, epoch)

    monkeypatch.setattr(epochs, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=[RUNS[3]], recipe=saving, folder=tmp_path)
    monkeypatch.undo()
    resumed = fit(*problem, runs=[RUNS[3]], recipe=saving, folder=tmp_path)[0]
    assert whole.trace is not None
    assert resumed.trace is not None
    assert torch.equal(whole.trace, resumed.trace)


def test_a_resumed_training_keeps_its_trace(problem: tuple[torch.nn.Module, Data], tmp_path: Any) -> None:
    whole = fitted(problem, RUNS[3], trace=True)[0]

    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=[RUNS[3]], recipe=recipe(trace=True), folder=tmp_path, hooks=[Stops(3)])
    resumed = fit(*problem, runs=[RUNS[3]], recipe=recipe(trace=True), folder=tmp_path)[0]
    assert whole.trace is not None
    assert resumed.trace is not None
    torch.testing.assert_close(resumed.trace, whole.trace, rtol=0, atol=0)


def test_splits_can_wait_for_the_end(problem: tuple[torch.nn.Module, Data]) -> None:
    early, late = fitted(problem, RUNS[3])[0], fitted(problem, RUNS[3], only_at_end=("train",))[0]
    assert [set(row["splits"]) for row in late.history] == [{"test"}] * 5
    assert torch.equal(late.predictions["train"].predictions, early.predictions["train"].predictions)


def test_what_is_picked_on_a_split_cannot_wait_for_it(problem: tuple[torch.nn.Module, Data]) -> None:
    best = Run(method=methods.nft_es(on="test"), sparsity=0.5)
    with pytest.raises(InputProblems) as error:
        fitted(problem, best, only_at_end=("test", "tset"))
    assert "only_at_end" in str(error.value)
    assert '"tset", which is not evaluated' in str(error.value)
    assert "its best iterate is to be picked" in str(error.value)


def test_a_recipe_decides_by_the_device() -> None:
    cpu, gpu = Recipe().on(torch.device("cpu")), Recipe().on(torch.device("cuda"))
    assert (cpu.precision, cpu.channels_last, cpu.compile, cpu.graph) == ("float32", False, False, False)
    assert (gpu.precision, gpu.channels_last, gpu.compile, gpu.graph) == ("bfloat16", True, None, True)
    told = Recipe(precision="float32", channels_last=False, compile=False, graph=False)
    assert told.on(torch.device("cuda")) == told


@needs_triton
def test_what_is_compiled_on_a_gpu_depends_on_the_norms() -> None:
    gpu, inputs = torch.device("cuda"), torch.zeros(2, 3, 8, 8)
    fused = widen(cifar_resnet56(10), 2, sample_input=inputs, check=False)
    without = widen(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), 2, sample_input=inputs, check=False)
    bare = widen(
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(256, 4)),
        2,
        sample_input=inputs,
        check=False,
    )
    for one, told, expected in (
        (fused, Recipe(), False),
        (fused, Recipe(precision="float32"), True),
        (fused, Recipe(compile=True), True),
        (without, Recipe(), True),
        (without, Recipe(compile=False), False),
        (bare, Recipe(), True),  # norms that the kernels cannot serve
        (single(cifar_resnet56(10)), Recipe(), True),  # a model that cannot be widened keeps its own norms
    ):
        assert compiles(one, told.on(gpu), gpu) is expected
    assert not compiles(without, Recipe(), torch.device("cpu"))


def test_without_a_graph_work_is_just_done() -> None:
    calls: list[int] = []
    replay = Replay(lambda: calls.append(1), device=torch.device("cpu"), graph=True)
    replay()
    replay("another key")
    assert len(calls) == 2
    assert replay.captured is None


@pytest.mark.parametrize("at", ["the work", "the end of the capture"])
def test_a_capture_without_room_is_told_as_that(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    @contextlib.contextmanager
    def capture(*_: Any, **__: Any) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            if at == "the work":
                raise
            raise RuntimeError("operation failed due to a previous error during capture")  # noqa: B904

    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    replay = Replay(work, device=torch.device("cpu"), graph=True)
    with pytest.raises(torch.OutOfMemoryError, match=r"^CUDA out of memory\.$"):
        replay._capture(())


@pytest.mark.parametrize(
    ("changes", "within"),
    [
        ({}, True),
        ({"scheduler_steps": "batch"}, False),
        ({"scheduler_steps": "batch", "scheduler": None}, True),
        ({"optimizer": partial(AdamW, lr=1e-3)}, False),
        ({"optimizer": partial(AdamW, lr=1e-3, capturable=True)}, True),
        ({"optimizer": type("Own", (SGD,), {})}, False),
    ],
)
def test_only_optimizers_that_need_nothing_from_python_are_captured(
    problem: tuple[torch.nn.Module, Data], changes: dict[str, Any], within: bool
) -> None:
    class Loop:
        optimizer = changes.get("optimizer", partial(SGD, lr=0.1))([torch.nn.Parameter(torch.zeros(1))])
        recipe = Recipe(**changes)
        scheduler = None if recipe.scheduler is None else LambdaLR(optimizer, lambda _: 1.0)
        replay = type("Graphed", (), {"graph": True})

    assert loops.updates_within(Loop) is within  # type: ignore[arg-type]

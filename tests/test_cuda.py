"""On a real GPU: captured, compiled and streamed training finds what the plain loop finds."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from evenprune import depthwise_conv, fleet, fused_norm, grouped_conv, methods, pointwise_conv
from evenprune.grouped_conv import Shape
from evenprune.importance import MiniBatches, group_importance
from evenprune.masks import Masks
from evenprune.predict import predict
from evenprune.recipe import Data, Run
from evenprune.replay import Replay
from evenprune.training import Fitted, fit
from evenprune.wide_layers import part, widened
from tests import still_channels
from tests.training_cases import Stops, data_for, images, network, recipe, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# Of torch's own import, when something is compiled.
compiles = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
PLAIN = {"precision": "float32", "channels_last": False, "compile": False, "graph": False}
PASSES: Any = {"dual_lr": 0.1, "multipliers_on": "test", "estimator": "pass", "refresh": 3}
RUNS = [
    Run(method=methods.nft(), sparsity=0.5, seed=0),
    Run(method=methods.ceag(tolerance=0.01, dual_lr=0.05, k=4), sparsity=0.5, seed=1),
    Run(method=methods.el_rb(dual_lr=0.05, k=4), sparsity=0.7, seed=2),
    Run(method=methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="test"), sparsity=0.5, seed=3),
    Run(method=methods.ceag(tolerance=0.01, **PASSES), sparsity=0.5, seed=4),
]


@pytest.fixture(autouse=True)
def float32_is_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not TF32, whose rounding depends on the algorithm."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Data]:
    train = images(240)
    model = trained(network(), train)
    return model, data_for(model, train, train=train, test=images(60, seed=5))


def fitted(problem: tuple[nn.Module, Data], **changes: Any) -> list[Fitted]:
    return fit(*problem, runs=RUNS, recipe=recipe(epochs=8, **changes), device="cuda")


def weights(one: Fitted) -> Tensor:
    return torch.cat([t.flatten() for t in one.model.state_dict().values() if t.is_floating_point()])


@compiles
@pytest.mark.parametrize(
    "changes",
    [
        {"graph": True},
        {"graph": True, "optimizer": partial(AdamW, lr=1e-3)},
        {"graph": True, "scheduler_steps": "batch"},
        {"graph": True, "data_on_device": False},
        {"compile": True},
        {"compile": True, "graph": True, "channels_last": True},
    ],
    ids=str,
)
def test_each_switch_changes_rounding_at_most(
    problem: tuple[nn.Module, Data], changes: dict[str, Any]
) -> None:
    shared = {name: changes[name] for name in ("optimizer", "scheduler_steps") if name in changes}
    # AdamW divides by the root of second moments, tiny ones among them: there rounding grows.
    most = 0.02 if "optimizer" in changes else 1e-3
    for a, b in zip(fitted(problem, **PLAIN | shared), fitted(problem, **PLAIN | changes), strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=most)
        torch.testing.assert_close(a.multipliers, b.multipliers, rtol=0, atol=1e-3)


def test_the_default_is_as_accurate(problem: tuple[nn.Module, Data]) -> None:
    for a, b in zip(fitted(problem, **PLAIN), fitted(problem), strict=True):
        plain, fast = (one.predictions["train"].correct.double().mean() for one in (a, b))
        assert abs(float(plain - fast)) < 0.05


def test_a_run_that_diverges_rests_and_a_captured_step_goes_on(problem: tuple[nn.Module, Data]) -> None:
    tame = methods.equalized(dual_lr=1e-3, k=4, negative="keep")
    found, calm = (
        fit(*problem, runs=[*RUNS, Run(method=last, sparsity=0.5)], recipe=recipe(epochs=8), device="cuda")
        for last in (replace(tame, dual_lr=1e38), tame)
    )
    assert [one.diverged for one in found] == [*[None] * len(RUNS), 2]
    for a, b in zip(found[:-1], calm[:-1], strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=1e-2)
    assert weights(found[-1]).isfinite().all()


def test_a_captured_work_that_is_forgotten_gives_its_memory_back_and_is_captured_anew() -> None:
    device, total = torch.device("cuda"), torch.zeros((), device="cuda")
    replay = Replay(lambda: total.add_(torch.ones(2**26, device="cuda").mean()), device=device, graph=True)
    for _ in range(5):
        replay()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    replay.forget()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before - 2**28
    replay()
    assert float(total) == 6


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seeds", [1, 2])  # of one start, a single network becomes a fleet
def test_a_shared_start_ends_as_runs_by_themselves_do(
    problem: tuple[nn.Module, Data], seeds: int, graph: bool
) -> None:
    some = [run.method for run in RUNS]
    runs = [Run(method=method, sparsity=0.5, seed=seed) for method in some for seed in range(seeds)]
    told = {**PLAIN, "graph": graph, "epochs": 8}
    ends = [
        fit(*problem, runs=runs, recipe=recipe(share_pruning=share, **told), device="cuda")
        for share in (True, False)
    ]
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=1e-3)
        torch.testing.assert_close(a.multipliers, b.multipliers, rtol=0, atol=1e-3)


@pytest.mark.parametrize("runs", [1, 3])
def test_importance_on_the_device_is_that_of_the_processor(
    problem: tuple[nn.Module, Data], runs: int
) -> None:
    model, data = problem
    wide = fleet.widen(model, runs, sample_input=data.train.inputs[:4])
    found = []
    for device in ("cpu", "cuda"):
        there = wide.to(device)
        masks, batches = Masks.of(there, runs=runs), MiniBatches(data.train.to(device), size=32, count=4)
        found.append(group_importance(there, masks, batches, groups=3))
    for expected, got in zip(*(one.values() for one in found), strict=True):
        assert float((got.cpu() - expected).abs().amax() / expected.amax()) < 1e-3


@pytest.mark.parametrize(
    "optimizer", [partial(SGD, lr=0.05, momentum=0.9, nesterov=True), partial(AdamW, lr=1e-3)]
)
def test_a_captured_training_resumes(problem: tuple[nn.Module, Data], tmp_path: Any, optimizer: Any) -> None:
    changes = recipe(epochs=8, optimizer=optimizer, **{**PLAIN, "graph": True})
    whole = fit(*problem, runs=RUNS, recipe=changes, device="cuda")
    with pytest.raises(KeyboardInterrupt):
        fit(*problem, runs=RUNS, recipe=changes, device="cuda", folder=tmp_path, hooks=[Stops(4)])
    resumed = fit(*problem, runs=RUNS, recipe=changes, device="cuda", folder=tmp_path)
    for a, b in zip(whole, resumed, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "shape", [Shape(3, 1, 1, 2), Shape(3, 1, 1, 7), Shape(3, 2, 1, 7), Shape(1, 2, 0, 5)], ids=str
)
@pytest.mark.parametrize("channels", [3, 16, 32, 64])
def test_kernels_on_the_device(shape: Shape, channels: int) -> None:
    out = 16 if channels == 3 else min(2 * channels, 64)
    x = torch.randn(8, shape.runs * channels, 16, 16, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(
        shape.runs * out, channels, shape.kernel, shape.kernel, device="cuda"
    ).requires_grad_()
    got = grouped_conv.convolve(x, weight, None, shape)
    wide = [t.detach().double().requires_grad_() for t in (x, weight.detach().bfloat16())]
    expected = nn.functional.conv2d(*wide, stride=shape.stride, padding=shape.pad, groups=shape.runs)
    grown = torch.randn_like(expected).bfloat16()
    found = (got, *torch.autograd.grad(got, (x, weight), grown))
    truth = (expected, *torch.autograd.grad(expected, wide, grown.double()))
    for a, b in zip(found, truth, strict=True):
        assert float((a.double() - b).detach().norm() / b.detach().norm()) < 5e-3


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_widened_layer_of_many_channels_on_the_device(runs: int, stride: int) -> None:
    wide = widened(nn.Conv2d(64, 128, 3, stride, 1, bias=False).cuda(), runs)
    wide = wide.to(memory_format=torch.channels_last)
    x = torch.randn(4, runs * 64, 9, 8, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = wide(x)
    assert got.dtype == torch.bfloat16
    assert got.is_contiguous(memory_format=torch.channels_last)
    grown = torch.randn_like(got)
    got.backward(grown)
    weight = wide.weight.detach().clone().requires_grad_()
    expected = nn.functional.conv2d(x, weight, None, stride, 1, groups=runs)
    expected.backward(grown.float())
    for a, b in ((got.float(), expected), (wide.weight.grad, weight.grad)):
        assert float((a - b).detach().norm() / b.detach().norm()) < 1e-2


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("act", ["none", "relu", "relu6"])
@pytest.mark.parametrize("training", [True, False])
def test_fused_norms_on_the_device(residual: bool, act: Any, training: bool) -> None:
    norm = nn.BatchNorm2d(80).cuda().train(training)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    twin, shape = copy.deepcopy(norm).double(), (16, 80, 12, 12)
    given = [torch.randn(shape, device="cuda").bfloat16().requires_grad_() for _ in range(1 + residual)]
    more = given[1] if residual else None
    assert fused_norm.serves(norm, given[0], more)
    both = fused_norm.fused(norm, given[0], more, act, twice=True)
    wide = [t.detach().double().requires_grad_() for t in given]
    expected = fused_norm.plain(twin, wide[0], wide[1] if residual else None, act)
    # A sum just below 6 rounds to 6, where ReLU6 cuts: no gradient comes in there.
    told = (expected.detach() - 6).abs() > 2**-5
    grown = [(torch.randn_like(expected) * told).bfloat16() for _ in range(2)]
    found = (both[0], *torch.autograd.grad(both, (*given, *norm.parameters()), grown))
    inputs = (*wide, *twin.parameters())
    truth = (expected, *torch.autograd.grad((expected,) * 2, inputs, [g.double() for g in grown]))
    pairs = [*zip(found, truth, strict=True), *zip(norm.buffers(), twin.buffers(), strict=True)]
    for a, b in pairs:
        assert float((a.double() - b.double()).detach().norm() / b.double().detach().norm().clamp(1)) < 1e-2


def test_no_gradient_passes_through_still_channels_on_the_device() -> None:
    """By the kernels as by the plain operations; a channel of zeros may be of a filter that can learn."""
    norm, x = nn.BatchNorm2d(80).cuda(), torch.randn(8, 80, 6, 6, device="cuda").bfloat16()
    x[:, :8], x[:, 8:16] = 0.3, 0
    x.requires_grad_()
    grown = torch.randn_like(x)
    ways = (fused_norm.fused(norm, x, None, "none", twice=False), fused_norm.plain(norm, x, None, "none"))
    for y in ways:
        assert isinstance(y, Tensor)
        (dx,) = torch.autograd.grad(y, x, grown)
        moves = (dx != 0).any(dim=(0, 2, 3)).tolist()
        assert moves == [False] * 8 + [True] * 8 + [True] * 64


def test_pruned_fleets_answer_alike_in_every_precision_on_the_device() -> None:
    runs = [Run(method=methods.nft(), sparsity=0.93, seed=seed) for seed in range(3)]
    model, problem, recipe = still_channels.narrow(), still_channels.data(), still_channels.recipe(0.05)
    found = fit(model, problem, runs=runs, recipe=recipe, device="cuda")
    assert sum(still_channels.blind(one.model) for one in found) > 0  # else this shows nothing
    for one in found:
        here = one.predictions["train"].predictions
        for answers in (
            predict(one.model, problem.train),
            predict(one.model, problem.train, precision="bfloat16"),
        ):
            assert (answers.predictions == here).float().mean() > 0.95


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [3, 60, 144, 720, 960])  # of all runs
@pytest.mark.parametrize("size", [(16, 16), (33, 7), (4, 4)], ids=str)
def test_depthwise_kernels_on_the_device(stride: int, channels: int, size: tuple[int, int]) -> None:
    x = torch.randn(8, channels, *size, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(channels, 1, 3, 3, device="cuda").requires_grad_()
    assert depthwise_conv.serves(x, weight, stride, 1)
    got = depthwise_conv.convolve(x, weight, None, stride)
    wide = [t.detach().double().requires_grad_() for t in (x, weight.detach().bfloat16())]
    expected = nn.functional.conv2d(*wide, stride=stride, padding=1, groups=channels)
    grown = torch.randn_like(expected).bfloat16()
    found = (got, *torch.autograd.grad(got, (x, weight), grown))
    truth = (expected, *torch.autograd.grad(expected, wide, grown.double()))
    for a, b in zip(found, truth, strict=True):
        assert float((a.double() - b).detach().norm() / b.detach().norm()) < 5e-3
    again = torch.autograd.grad(depthwise_conv.convolve(x, weight, None, stride), (x, weight), grown)
    assert all(torch.equal(a, b) for a, b in zip(found[1:], again, strict=True))  # a fixed order of sums


@compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_a_widened_depthwise_layer_on_the_device(compiled: bool) -> None:
    layer = nn.Conv2d(48, 48, 3, stride=2, padding=1, groups=48).cuda()
    wide = widened(layer, 3).to(memory_format=torch.channels_last)
    with torch.no_grad():
        wide.weight.normal_()
    x = torch.randn(4, 3 * 48, 17, 16, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert depthwise_conv.serves(x, wide.weight, 2, 1)
        got = (torch.compile(wide) if compiled else wide)(x)
    grown = torch.randn_like(got)
    got.backward(grown)
    assert got.dtype == torch.bfloat16
    for run in range(3):
        layer.load_state_dict({name: part(t, run, 3) for name, t in wide.state_dict().items()})
        layer.zero_grad()
        plain = layer(x.unflatten(1, (3, 48))[:, run])
        plain.backward(grown.unflatten(1, (3, 48))[:, run].float())
        pairs = [(got.unflatten(1, (3, 48))[:, run].float(), plain)]
        parameters = zip(wide.parameters(), layer.parameters(), strict=True)
        pairs += [(part(p.grad, run, 3), q.grad) for p, q in parameters]
        for a, b in pairs:
            assert float((a - b).detach().norm() / b.detach().norm()) < 1e-2


@pytest.mark.parametrize("runs", [1, 5])
@pytest.mark.parametrize("channels", [(3, 5), (33, 17), (24, 144), (64, 384), (960, 320)], ids=str)
@pytest.mark.parametrize("size", [(32, 32), (33, 7), (4, 4)], ids=str)
def test_pointwise_kernels_on_the_device(runs: int, channels: tuple[int, int], size: tuple[int, int]) -> None:
    for inner, outer in {channels, channels[::-1]}:
        x = torch.randn(8, runs * inner, *size, device="cuda").bfloat16().requires_grad_()
        weight = torch.randn(runs * outer, inner, 1, 1, device="cuda").requires_grad_()
        assert pointwise_conv.fits(x, weight, Shape(1, 1, 0, runs))
        got = pointwise_conv.convolve(x, weight, None, runs)
        wide = [t.detach().double().requires_grad_() for t in (x, weight.detach().bfloat16())]
        expected = nn.functional.conv2d(*wide, groups=runs)
        grown = torch.randn_like(expected).bfloat16()
        found = (got, *torch.autograd.grad(got, (x, weight), grown))
        truth = (expected, *torch.autograd.grad(expected, wide, grown.double()))
        for a, b in zip(found, truth, strict=True):
            assert float((a.double() - b).detach().norm() / b.detach().norm()) < 5e-3
        again = torch.autograd.grad(pointwise_conv.convolve(x, weight, None, runs), (x, weight), grown)
        assert all(torch.equal(a, b) for a, b in zip(found[1:], again, strict=True))  # a fixed order of sums


@compiles
@pytest.mark.parametrize("compiled", [False, True])
def test_a_widened_pointwise_layer_on_the_device(compiled: bool) -> None:
    layer = nn.Conv2d(48, 24, 1).cuda()
    wide = widened(layer, 3).to(memory_format=torch.channels_last)
    with torch.no_grad():
        wide.weight.normal_()
    x = torch.randn(4, 3 * 48, 17, 16, device="cuda").to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert pointwise_conv.serves(x, wide.weight, Shape(1, 1, 0, 3))
        got = (torch.compile(wide) if compiled else wide)(x)
    grown = torch.randn_like(got)
    got.backward(grown)
    assert got.dtype == torch.bfloat16
    for run in range(3):
        layer.load_state_dict({name: part(t, run, 3) for name, t in wide.state_dict().items()})
        layer.zero_grad()
        plain = layer(x.unflatten(1, (3, 48))[:, run])
        plain.backward(grown.unflatten(1, (3, 24))[:, run].float())
        pairs = [(got.unflatten(1, (3, 24))[:, run].float(), plain)]
        parameters = zip(wide.parameters(), layer.parameters(), strict=True)
        pairs += [(part(p.grad, run, 3), q.grad) for p, q in parameters]
        for a, b in pairs:
            assert float((a - b).detach().norm() / b.detach().norm()) < 1e-2

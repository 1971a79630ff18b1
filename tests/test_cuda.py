"""On a real GPU: captured, compiled and streamed training finds what the plain loop finds."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from evenprune import grouped_conv, methods
from evenprune.grouped_conv import Shape
from evenprune.recipe import Data, Run
from evenprune.training import Fitted, fit
from tests.training_cases import Stops, data_for, images, network, recipe, trained

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
PLAIN = {"precision": "float32", "channels_last": False, "compile": False, "graph": False}
RUNS = [
    Run(method=methods.nft(), sparsity=0.5, seed=0),
    Run(method=methods.ceag(tolerance=0.01, dual_lr=0.05, k=4), sparsity=0.5, seed=1),
    Run(method=methods.el_rb(dual_lr=0.05, k=4), sparsity=0.7, seed=2),
    Run(method=methods.ceag(tolerance=0.01, dual_lr=0.1, k=4, multipliers_on="test"), sparsity=0.5, seed=3),
]


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, Data]:
    train = images(240)
    model = trained(network(), train)
    return model, data_for(model, train, train=train, test=images(60, seed=5))


def fitted(problem: tuple[nn.Module, Data], **changes: Any) -> list[Fitted]:
    return fit(*problem, runs=RUNS, recipe=recipe(epochs=8, **changes), device="cuda")


def weights(one: Fitted) -> Tensor:
    return torch.cat([t.flatten() for t in one.model.state_dict().values() if t.is_floating_point()])


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
    for a, b in zip(fitted(problem, **PLAIN | shared), fitted(problem, **PLAIN | changes), strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=0, atol=1e-3)
        torch.testing.assert_close(a.multipliers, b.multipliers, rtol=0, atol=1e-3)


def test_the_default_is_as_accurate(problem: tuple[nn.Module, Data]) -> None:
    for a, b in zip(fitted(problem, **PLAIN), fitted(problem), strict=True):
        plain, fast = (one.predictions["train"].correct.double().mean() for one in (a, b))
        assert abs(float(plain - fast)) < 0.05


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


@pytest.mark.parametrize("shape", [Shape(3, 1, 1, 2), Shape(3, 2, 1, 7), Shape(1, 2, 0, 5)], ids=str)
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
        assert float((a.double() - b).norm() / b.norm()) < 5e-3

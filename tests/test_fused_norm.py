"""Norm, shortcut and activation as one step: the kernels in Triton's interpreter, and what is made one."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from evenprune.fleet import extract, widen
from evenprune.fused_norm import NormAct, Table, chunks_of, moving, serves, tile_width, tiles
from evenprune.models import cifar_resnet56, mobilenet_v2, resnet34
from evenprune.norm_fusion import fuse
from tests.kernel_process import interpreted, needs_triton

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@needs_triton
def test_kernels_agree_with_the_plain_operations() -> None:
    """Result, all gradients, running statistics. In a process of its own: Triton chooses its interpreter."""
    printed = interpreted("fused_norms")
    *cases, still, network = (float(line.rsplit(" ", 1)[1]) for line in printed)
    assert len(cases) == 20
    assert still == 0, printed
    assert max(cases) < 1e-6, printed
    assert network < 1e-5, printed  # rounding, through seven layers


def test_tiles_are_launched_however_many_there_are() -> None:
    """An axis of a grid but the first ends at 65,535."""
    (programs,), settings = tiles(Table(512 * 112 * 112, 64, 64))
    assert programs * settings["BLOCK"] >= 512 * 112 * 112
    assert len(tiles(Table(9, 400, 64))[0]) == 1


# --- what becomes one step ---


class Net(nn.Module):
    """A convolution and a norm, and what a test does with them."""

    def __init__(self, use: Callable[["Net", Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.other, self.norm = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        self.relu, self.relu6, self.use = nn.ReLU(inplace=True), nn.ReLU6(), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def looked_at_in_between(net: Net, x: Tensor) -> Tensor:
    middle = net.norm(net.conv(x))
    return net.relu6(middle) + middle


def changed_in_between(net: Net, x: Tensor) -> Tensor:
    kept = net.other(x)
    summed = net.norm(net.conv(x)) + kept
    return net.relu6(summed) + torch.relu_(kept) + net.relu6(kept)


def changed_before_the_activation(net: Net, x: Tensor) -> Tensor:
    kept = net.other(x)
    summed = net.norm(net.conv(x)) + kept
    changed = torch.relu_(kept)
    return net.relu(summed) + changed


CASES: dict[str, tuple[Callable[[Net, Tensor], Tensor], dict[str, str | bool]]] = {
    "alone": (lambda n, x: n.norm(n.conv(x)), {}),
    "a module": (lambda n, x: n.relu(n.norm(n.conv(x))), {"act": "relu"}),
    "a function": (lambda n, x: F.relu6(n.norm(n.conv(x))), {"act": "relu6"}),
    "a method": (lambda n, x: n.norm(n.conv(x)).relu(), {"act": "relu"}),
    "sum": (lambda n, x: n.norm(n.conv(x)) + n.other(x), {"residual": True}),
    "sum, other first": (
        lambda n, x: n.relu6(n.other(x) + n.norm(n.conv(x))),
        {"residual": True, "act": "relu6"},
    ),
    "torch.add": (lambda n, x: torch.add(n.norm(n.conv(x)), n.other(x)), {"residual": True}),
    "not a factor": (lambda n, x: torch.add(n.norm(n.conv(x)), n.other(x), alpha=2), {}),
    "not a number": (lambda n, x: n.relu(n.norm(n.conv(x)) + 1.0), {}),
    "not twice itself": (lambda n, x: _doubled(n.norm(n.conv(x))), {}),
    "not another activation": (lambda n, x: F.silu(n.norm(n.conv(x))), {}),
    "not what others look at": (looked_at_in_between, {}),
    "a residual that is changed later": (changed_in_between, {"residual": True, "act": "relu6"}),
    "not past a change": (changed_before_the_activation, {"residual": True}),
}


def _doubled(value: Tensor) -> Tensor:
    return value + value


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_one_step(name: str) -> None:
    use, expected = CASES[name]
    torch.manual_seed(0)
    net = Net(use).double()
    traced = fx.symbolic_trace(copy.deepcopy(net))
    fuse(traced.graph, traced)
    traced.recompile()
    (call,) = (node for node in traced.graph.nodes if node.target == "norm")
    assert {key: True if key == "residual" else value for key, value in call.kwargs.items()} == expected
    inputs = torch.randn(5, 3, 4, 4, dtype=torch.float64)
    for training in (True, False):
        torch.testing.assert_close(traced.train(training)(inputs), net.train(training)(inputs))
    assert torch.equal(traced.get_submodule("norm").running_var, net.norm.running_var)


def test_a_result_with_two_uses_is_handed_out_twice() -> None:
    model = cifar_resnet56(10).double()
    traced = fx.symbolic_trace(copy.deepcopy(model))
    fuse(traced.graph, traced)
    traced.recompile()
    calls = [node for node in traced.graph.nodes if isinstance(_module(traced, node), NormAct)]
    # All but the last block of a stage hand on to a layer and to a shortcut; so does the first norm.
    # Where the shape changes, the shortcut has a layer of its own.
    assert sum(bool(call.kwargs.get("twice")) for call in calls) == 1 + 3 * 8
    assert sum("residual" in call.kwargs for call in calls) == 27
    assert not any(isinstance(_module(traced, node), nn.ReLU) for node in traced.graph.nodes)
    inputs = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    grown = torch.randn(3, 10, dtype=torch.float64)
    model(inputs).backward(grown)
    traced(inputs).backward(grown)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(traced.get_parameter(name).grad, parameter.grad)


def test_a_result_that_is_changed_in_place_is_not_handed_out_twice() -> None:
    def use(net: Net, x: Tensor) -> Tensor:
        first = net.norm(net.conv(x))
        return net.last_norm(net.last(net.relu(first))) + first  # the ReLU works in place

    net = Net(use)
    net.last, net.last_norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
    traced = fx.symbolic_trace(net)
    fuse(traced.graph, traced)
    assert not any(node.kwargs.get("twice") for node in traced.graph.nodes)
    assert any("residual" in node.kwargs for node in traced.graph.nodes)


def _module(traced: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return traced.get_submodule(str(node.target)) if node.op == "call_module" else None


@pytest.mark.parametrize("make", [cifar_resnet56, mobilenet_v2, resnet34])
def test_a_widened_model_has_no_norm_left_over_and_the_model_stays_plain(
    make: Callable[..., nn.Module],
) -> None:
    model = make(5)
    wide = widen(model, 2, sample_input=torch.zeros(2, 3, 32, 32), check=False)
    assert {type(module) for module in wide.modules() if isinstance(module, nn.BatchNorm2d)} == {NormAct}
    for plain in (model, extract(wide, 1)):
        assert not any(isinstance(module, NormAct) for module in plain.modules())
    assert set(wide.state_dict()) == set(model.state_dict())


# --- channels that stand still ---


class Standing(nn.Module):
    """Channel 0: a filter without weights, its norm's bias, a depthwise weight of the middle pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.widen, self.depth, self.narrow = (
            nn.Conv2d(3, 6, 1),
            nn.Conv2d(6, 6, 1, groups=6),
            nn.Conv2d(6, 4, 1),
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for channels in (6, 6, 4)])
        for norm in self.norms:
            NormAct.become(norm)
            nn.init.uniform_(norm.bias, 0.5, 1)
        self.widen.weight.data[0] = 0
        self.widen.bias.data[0] = 0

    def forward(self, x: Tensor) -> Tensor:
        acts = ("relu6", "relu6", "none")
        for conv, norm, act in zip((self.widen, self.depth, self.narrow), self.norms, acts, strict=True):
            parameters = (conv.weight.to(x), conv.bias.to(x))
            x = norm(F.conv2d(x, *parameters, groups=conv.groups), act=act)
        return x


def standing_gradients(kind: torch.dtype) -> dict[str, Tensor]:
    """Of one network, images and loss."""
    torch.manual_seed(0)
    network, x = Standing(), torch.randn(16, 3, 12, 12)
    if kind == torch.float64:
        network = network.double()
    y = network(x.to(kind))
    (y.float() * torch.randn(y.shape)).mean().backward()
    return {name: p.grad.double() for name, p in network.named_parameters() if p.grad is not None}


def test_no_gradient_passes_through_channels_that_stand_still() -> None:
    """Theirs add up to zero; of a sum in 16 bits rounding would be left, multiplied by 316 at every norm."""
    truth, found = standing_gradients(torch.float64), standing_gradients(torch.bfloat16)
    for name in ("norms.0.bias", "depth.weight"):  # before the channel that stands still
        assert abs(float(truth[name].flatten()[0])) < 1e-12
        assert float(found[name].flatten()[0]) == 0
    for name in ("norms.1.weight", "norms.2.bias", "narrow.weight"):
        assert float((found[name] - truth[name]).norm() / truth[name].norm()) < 0.05


def test_a_filter_of_zeros_can_learn() -> None:
    x = torch.zeros(4, 2, 3, 3, dtype=torch.bfloat16)
    x[:, 1] = 2
    x.requires_grad_()
    moving(x).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].eq(1).all()
    assert x.grad[:, 1].eq(0).all()


# --- sizes ---


@pytest.mark.parametrize("columns", [1, 16, 24, 80, 144, 400, 960, 1600])
def test_tiles_waste_little_and_chunks_cover_every_row(columns: int) -> None:
    wide = tile_width(columns)
    assert wide == 16 or -(-columns // wide) * wide <= 1.15 * columns
    for rows in (1, 7, 64, 5000, 131_072):
        table = Table(rows, columns, wide)
        chunk, chunks = chunks_of(table, 32, 1056, 64)
        assert chunk % 32 == 0
        assert (chunks - 1) * chunk < rows <= chunks * chunk
        assert chunks <= 64


def test_on_the_cpu_the_plain_operations_serve() -> None:
    assert not serves(nn.BatchNorm2d(4), torch.zeros(2, 4, 3, 3), None)

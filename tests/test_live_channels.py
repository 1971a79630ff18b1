"""A filter that reads nothing takes its norm along: which norms, in which modes, in fleets, in training."""

from __future__ import annotations

import copy
import statistics
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

import evenprune
from evenprune import fleet, methods
from evenprune.live_channels import steps_of
from evenprune.masks import Masks
from evenprune.models import cifar_resnet56, mobilenet_v2, small_cnn
from evenprune.predict import predict
from evenprune.recipe import Recipe, Run, Split
from evenprune.result import _in_both_modes
from evenprune.training import fit
from tests import still_channels
from tests.training_cases import Branching, trained


def tiny(seed: int = 0) -> nn.Sequential:
    """Two convolutions with norms, the middle one depthwise: its filters are the first to lose everything."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def disturbed(model: nn.Module, seed: int = 0) -> nn.Module:
    """Norms that have been somewhere: none of their numbers is 0 or 1."""
    random = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for tensor in (module.weight.data, module.bias.data, module.running_mean, module.running_var):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=random) + 0.5)
    return model


# --- which norms ---


def norms_of(model: nn.Module, **rules: Any) -> set[str]:
    """Those that can lose channels."""
    norms = {name for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    return norms & {name.rpartition(".")[0] for name in Masks.of(model, **rules).kept()}


class Odd(nn.Module):
    """Norms that never lose a channel: behind what is not zero for zeros, a bias, tied, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shifted = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)
        self.again, self.twice = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.turned, self.after_turned = nn.ConvTranspose2d(4, 4, 1), nn.BatchNorm2d(4)
        self.biased, self.one_of_two = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.plain, self.weightless = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4, affine=False)
        self.one, self.tied = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.other, self.tied_too = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.tied_too.weight = self.tied.weight
        self.left, self.right, self.summed = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.rows, self.own = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.shared, self.behind, self.behind_too = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.along, self.steps = (
            nn.Linear(5, 6),
            nn.BatchNorm1d(2),
        )  # of a sequence: two steps of six features

    def forward(self, x: Tensor) -> Tensor:
        x = self.shifted(torch.sigmoid(self.first(x)))
        x = self.twice(self.again(self.twice(self.again(x))))
        x = self.biased(self.after_turned(self.turned(x)))
        x = x + self.one_of_two(F.relu(x))
        x = self.tied_too(self.other(self.tied(self.one(self.weightless(self.plain(x))))))
        x = self.behind_too(self.shared(self.behind(self.shared(x))))
        x = self.summed(self.left(x) + self.right(x))  # constants: both have a bias
        x = self.own(F.softplus(self.rows(x.mean(dim=(2, 3)))))
        return self.steps(self.along(x.unsqueeze(1).expand(-1, 2, -1)))  # type: ignore[no-any-return]


def test_norms_that_never_see_zeros_never_lose_a_channel() -> None:
    model = Odd()
    assert norms_of(model, keep=()) == set()
    Masks.of(model, keep=()).prune_(model, 0.7)
    assert model(torch.randn(4, 1, 3, 3)).shape == (4, 2, 6)


class Plain(nn.Module):
    """Norms that do: behind a convolution with a bias, a sum, an activation and a pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)
        self.left, self.right = nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False)
        self.two, self.third = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, bias=False)
        self.three, self.last = nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.first(x))
        x = self.two(self.left(x) + self.right(x))
        x = F.avg_pool2d(F.relu(self.third(x)), 2)
        return self.last(self.three(x).mean(dim=(2, 3)))  # type: ignore[no-any-return]


def test_norms_behind_sums_activations_and_poolings() -> None:
    model = Plain()
    assert norms_of(model, keep=()) == {"one", "two", "three"}
    assert norms_of(model) == {"two", "three"}  # the first layer is never pruned
    masks = Masks.of(model)
    for name in ("left.weight", "right.weight"):
        masks[name][:2] = False  # nothing in channels 0 and 1 of the sum
    masks["left.weight"][2] = False
    masks["third.weight"][1, 2:] = False  # a filter that reads these two alone
    masks["third.weight"][0] = False
    kept = masks.kept()
    assert kept["two.weight"].tolist() == kept["two.bias"].tolist() == [False, False, True, True]
    assert kept["three.weight"].tolist() == [False, False, True, True]
    assert masks.summary().silent == (8,)


class Head(nn.Module):
    """Linear layers with norms, the first of them on the four pixels of every channel."""

    def __init__(self, *, module: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 3, 1, bias=False)
        self.one, self.two, self.three = nn.BatchNorm2d(3), nn.BatchNorm1d(5), nn.BatchNorm1d(4)
        self.flatten = nn.Flatten() if module else lambda x: torch.flatten(x, 1)
        self.rows, self.more, self.last = nn.Linear(12, 5), nn.Linear(5, 4, bias=False), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flatten(F.relu(self.one(self.second(F.relu(self.first(x))))))
        x = self.two(F.relu(self.rows(x)))  # a bias before the ReLU
        return self.last(self.three(self.more(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [True, False])
def test_norms_behind_linear_layers_and_flattened_channels(module: bool) -> None:
    model = Head(module=module)
    assert norms_of(model) == {"one", "two", "three"}
    masks = Masks.of(model)
    masks["second.weight"][1] = False  # its pixels are features 4 to 7
    masks["rows.weight"][0] = False
    masks["rows.weight"][1, :4] = masks["rows.weight"][1, 8:] = False  # reads that channel alone
    masks["rows.weight"][2, 1:] = False
    masks["more.weight"][3, 2:] = False  # reads rows 0 and 1 alone
    kept = masks.kept()
    assert kept["one.bias"].tolist() == [True, False, True]
    for name in ("rows.bias", "two.weight", "two.bias"):
        assert kept[name].tolist() == [False, False, True, True, True]
    assert kept["three.weight"].tolist() == [True, True, True, False]
    assert masks.summary().silent == (2 + 3 * 2 + 2,)
    masks.apply_(disturbed(model))
    inputs = torch.randn(8, 1, 2, 2)
    answers = model.eval()(inputs)
    with torch.no_grad():
        model.more.weight[:, :2] = 7.0  # of what is gone, there is nothing to be read
    torch.testing.assert_close(model(inputs), answers)


def test_a_bias_that_is_excluded_stays_and_what_is_behind_it() -> None:
    masks = Masks.of(Head(module=True), exclude=["rows.bias"])
    masks["rows.weight"][0] = masks["more.weight"][3] = False
    assert not {"rows.bias", "two.weight"} & set(masks.kept())
    assert masks.kept()["three.weight"].tolist() == [True, True, True, False]


ONE = {"bias": False, "kernel_size": 1}


@pytest.mark.parametrize(
    ("parts", "inputs"),
    [
        ([nn.Conv1d(4, 6, **ONE), nn.Linear(6, 6), nn.BatchNorm1d(6)], (4, 6)),  # along another dimension
        ([nn.Conv2d(4, 6, **ONE), nn.Flatten(1, 2), nn.Linear(7, 42), nn.BatchNorm1d(42)], (4, 7, 7)),
        ([nn.Conv1d(4, 6, **ONE), nn.Flatten(0, 1), nn.Linear(6, 6), nn.BatchNorm1d(6)], (4, 6)),
        ([nn.Conv1d(4, 6, **ONE), nn.Flatten(), nn.BatchNorm1d(36)], (4, 6)),
        ([nn.Linear(7, 4), nn.MaxPool1d(3, 1, 1), nn.BatchNorm1d(4)], (7,)),  # of neighbours
    ],
)
def test_dimensions_that_are_no_channels_are_none(parts: list[nn.Module], inputs: tuple[int, ...]) -> None:
    model = nn.Sequential(*parts)
    assert norms_of(model, keep=()) == set()
    assert model(torch.randn(3, *inputs)).isfinite().all()  # it is a network


def test_linear_layers_on_sequences_keep_their_norms() -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16)
    )
    assert {name for step in steps_of(model, dims=2) for name in step.goes} >= {
        "1.weight",
        "4.bias",
        "0.bias",
    }
    assert steps_of(model) == steps_of(model, dims=2)
    assert not any(step.weight for step in steps_of(model, dims=3))


class Written(nn.Module):
    """A value that a sum has changed, in one way or another, or that only looks like one term of it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 1, bias=False)
        self.more = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(x)
        if self.how == "keyword":
            y = torch.add(y, other=x)
        elif self.how == "method":
            y = y.add(other=x)
        elif self.how == "in place":
            y.add_(x)
        elif self.how == "number":
            y = y + 1
        elif self.how == "parameter":
            y = y + self.more.weight.view(1, -1, 1, 1) * x
        return self.more(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["keyword", "method", "in place", "number", "parameter"])
def test_sums_that_are_not_understood_keep_what_is_behind_them(how: str) -> None:
    assert norms_of(Written("not at all"), keep=()) == {"more"}
    assert norms_of(Written(how), keep=()) == set()


def test_a_hook_may_change_what_comes_out() -> None:
    model = Written("not at all")
    model.second.register_forward_hook(lambda module, inputs, output: output + inputs[0])
    assert norms_of(model, keep=()) == set()
    whole = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 1)), nn.BatchNorm2d(4))
    assert norms_of(whole, keep=()) == {"1"}
    whole[0].register_forward_hook(lambda module, inputs, output: output + 1)
    assert steps_of(whole) == ()


def test_modules_may_be_called_as_functions_are() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu, self.norm = nn.Conv2d(1, 4, 1), nn.Softplus(), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.relu(self.conv(x)))  # type: ignore[no-any-return]

    assert norms_of(Named(), keep=()) == set()


class Squeezing(nn.Module):
    """Squeeze and excitation, as in MobileNetV3: channels are multiplied by what all of them say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.depth, self.one = nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)
        self.squeeze, self.excite = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)
        self.project, self.two, self.last = nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardswish(self.one(self.depth(F.relu(self.first(x)))))
        scale = self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1))))
        x = self.two(self.project(torch.sigmoid(scale) * x))
        return self.last(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class Drawn(nn.Module):
    """A network of random parts: each reads one or two of the values before it."""

    def __init__(self, plan: list[tuple[str, int, int]], seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.plan, self.stem = plan, nn.Conv2d(1, 4, 1)
        self.parts = nn.ModuleList(self.part(name) for name, _, _ in plan)
        self.last = nn.Linear(4, 2)

    @staticmethod
    def part(name: str) -> nn.Module:
        norm, wide = nn.BatchNorm2d(4), {"depthwise": 1, "joined": 8}.get(name, 4)
        conv = nn.Conv2d(wide, 4, 1, bias=name in ("biased", "behind ReLU"))
        layers = {
            "plain": [conv, norm, nn.ReLU()],
            "behind ReLU": [conv, nn.ReLU(), norm],
            "biased": [conv],
            "depthwise": [nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), norm, nn.Hardswish()],
            "joined": [conv, norm],
            "pooled": [nn.AvgPool2d(3, 1, 1), norm],
            "shifted": [nn.Sigmoid(), norm],
        }
        return nn.Sequential(*layers.get(name, [norm]))

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for (name, i, j), part in zip(self.plan, self.parts, strict=True):
            a, b = values[-1 - i % len(values)], values[-1 - j % len(values)]
            joined = torch.cat([a, b], 1) if name == "joined" else a + b if name == "sum" else a
            values.append(part(a * b if name == "product" else joined))
        return self.last(sum(values[1:], values[0]).mean(dim=(2, 3)))  # type: ignore[no-any-return]


NAMES = ("plain", "behind ReLU", "biased", "depthwise", "joined", "pooled", "shifted", "sum", "product")
PLANS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=9
)


@given(PLANS, st.integers(0, 10_000), st.floats(0.6, 0.93))
@settings(max_examples=200)
def test_what_goes_never_depended_on_the_inputs(
    plan: list[tuple[str, int, int]], seed: int, sparsity: float
) -> None:
    """Every norm whose channel goes sees nothing there, for any input; and what is left is not touched."""
    model = disturbed(Drawn([("plain", 0, 0), *plan], seed), seed)
    masks, before = Masks.of(model), copy.deepcopy(model.state_dict())
    masks.prune_(model, sparsity)
    kept = masks.kept()
    for name, mask in kept.items():
        values = model.get_parameter(name)
        assert torch.equal(values, torch.where(mask.reshape(values.shape), before[name], 0))
    seen = dict[str, Tensor]()
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_hook(lambda _, inputs, __, name=name: seen.update({name: inputs[0]}))
    model.eval()(torch.randn(6, 1, 5, 5, generator=torch.Generator().manual_seed(seed)))
    for name, inputs in seen.items():
        if f"{name}.weight" in kept:
            assert not inputs[:, ~kept[f"{name}.weight"]].any()


def test_a_product_with_nothing_is_nothing() -> None:
    model = disturbed(Squeezing())
    masks = Masks.of(model)
    masks["depth.weight"][1] = False
    masks["project.weight"][2, [0, 2, 3]] = False  # reads that channel alone
    assert masks.kept()["two.weight"].tolist() == [True, True, False]
    masks.apply_(model)
    inputs = torch.randn(4, 1, 5, 5)
    answers = model.eval()(inputs)
    with torch.no_grad():
        model.project.weight[:, 1] = 7.0  # of what is gone, there is nothing to be read
    torch.testing.assert_close(model(inputs), answers)


def test_the_architectures_may_lose_channels_behind_every_convolution_that_is_pruned() -> None:
    for model in (mobilenet_v2(5), cifar_resnet56(10), small_cnn()):
        norms = [n for n, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
        assert norms_of(model) == set(norms[1:])


def test_a_model_that_cannot_be_traced_keeps_its_norms() -> None:
    model = disturbed(Branching())
    assert steps_of(model) == ()
    masks = Masks.of(model)
    masks.prune_(model, 0.9)
    assert masks.summary().silent == (0,)
    assert (model.get_parameter("layers.4.weight") != 0).all()


class Noted(nn.Module):
    """Whatever a forward may leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = tiny(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls, self.last = self.calls + 1, x
        if self.training and torch.rand(1) < 0.5:
            return self.body(x)  # type: ignore[no-any-return]
        return self.body(x - torch.tensor([0.5]))  # type: ignore[no-any-return]


def test_looking_at_a_model_leaves_no_trace_in_it_nor_in_the_random_numbers() -> None:
    model, heard = Noted(), list[int]()
    model.body[0].register_forward_hook(lambda *_: heard.append(1))
    before, state = dict(model.__dict__), torch.get_rng_state()
    assert len({steps_of(model) for _ in range(4)}) == 1
    assert model.__dict__ == before
    assert model.training
    assert not heard
    assert torch.equal(torch.get_rng_state(), state)


def test_norms_that_are_excluded_or_pruned_themselves_stay() -> None:
    model = disturbed(tiny())
    masks = Masks.of(model, exclude=["4"])
    masks.prune_(model, 0.9)
    assert not {"4.weight", "4.bias"} & set(masks.kept())
    assert (model.get_parameter("4.weight") != 0).all()
    model = disturbed(tiny())
    both = Masks.of(model, include=["4.weight"])
    both.prune_(model, 0.85)
    assert int(both["4.weight"].sum()) == 1
    assert (model.get_parameter("4.bias") != 0).all()


# --- what it does ---


@given(st.integers(0, 10_000), st.floats(0.5, 0.97))
@settings(max_examples=30)
def test_norms_live_where_their_filters_read_something(seed: int, sparsity: float) -> None:
    model = disturbed(tiny(seed), seed)
    before = copy.deepcopy(model.state_dict())
    masks = Masks.of(model)
    masks.prune_(model, sparsity)
    depthwise, pointwise = (model.get_parameter(f"{layer}.weight") for layer in (3, 6))
    alive = {"4": [bool(depthwise[row].any()) for row in range(8)]}
    alive["7"] = [any(alive["4"][i] and bool(pointwise[row, i].any()) for i in range(8)) for row in range(6)]
    for norm, rows in alive.items():
        for part in ("weight", "bias"):
            for row, lives in enumerate(rows):
                kept = before[f"{norm}.{part}"][row] if lives else 0
                assert model.get_parameter(f"{norm}.{part}")[row] == kept
    assert masks.summary().silent == (2 * sum(rows.count(False) for rows in alive.values()),)
    nonzero = sum(int(p.count_nonzero()) for p in model.parameters())
    assert masks.summary().left == (nonzero,)  # nothing that is left is zero by chance


def test_a_channel_that_is_gone_is_zero_in_every_mode_and_precision() -> None:
    model = disturbed(tiny())
    masks = Masks.of(model)
    masks.prune_(model, 0.9)
    empty = ~masks["3.weight"].flatten(1).any(1)
    assert 2 <= int(empty.sum()) < 8
    for training in (True, False):
        for dtype in (torch.float32, torch.bfloat16):
            half = copy.deepcopy(model[:5]).train(training).to(dtype)
            assert not half(torch.randn(4, 1, 6, 6, dtype=dtype))[:, empty].any()


def test_what_left_no_trace_in_exact_arithmetic_leaves_none_now() -> None:
    """The next norm removes constants that a 1×1 convolution adds up: with and without them is the same."""
    model = disturbed(tiny()).double()
    plain, silent = copy.deepcopy(model), copy.deepcopy(model)
    for one, stay in ((plain, ["4", "7"]), (silent, ["7"])):
        Masks.of(one, exclude=stay).prune_(one, 0.9)
    inputs = torch.randn(16, 1, 6, 6, dtype=torch.double)
    assert (plain[4].bias != silent[4].bias).any()
    torch.testing.assert_close(plain.train()(inputs), silent.train()(inputs))


def test_a_fleet_silences_each_run_by_its_own_filters() -> None:
    model = disturbed(tiny())
    wide = fleet.widen(model, 3, sample_input=torch.randn(2, 1, 6, 6))
    fleet.load_(wide, [disturbed(tiny(seed), seed) for seed in range(3)])
    masks = Masks.of(wide, runs=3, steps=steps_of(model))
    masks.prune_(wide, [0.5, 0.9, 0.95])
    for run, sparsity in enumerate((0.5, 0.9, 0.95)):
        alone = disturbed(tiny(run), run)
        own = Masks.of(alone)
        own.prune_(alone, sparsity)
        together = fleet.extract(wide, run).state_dict()
        for name, tensor in alone.state_dict().items():
            assert torch.equal(together[name], tensor), name
        assert masks.summary().silent[run] == own.summary().silent[0]
        assert masks.extract(run).summary() == own.summary()


@pytest.mark.parametrize("runs", [1, 2])
def test_training_does_not_bring_them_back(runs: int) -> None:
    recipe = Recipe(epochs=6, pruning_epochs=3, batch_size=16, compile=False)
    asked = [Run(method=methods.nft(), sparsity=0.9, seed=seed) for seed in range(runs)]
    for one in fit(tiny(), still_channels.data(), runs=asked, recipe=recipe):
        for name, mask in one.masks.kept().items():
            values: Any = one.model.get_parameter(name)
            assert not values[~mask].any()
            assert values[mask].all()
        assert one.masks.summary().silent[0] > 0


def decaying() -> Recipe:
    """Biases move to the end, and running means lag behind."""
    decays = partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Recipe(
        epochs=20, pruning_epochs=5, batch_size=64, compile=False, evaluate_every=20,
        optimizer=decays, scheduler=None,
    )  # fmt: skip


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_pruned_perceptrons_answer_alike_in_training_and_evaluation(together: bool, norm_first: bool) -> None:
    """With all their norms one of two had 31 % right in evaluation, where training mode had 90; if biases are
    seen by ReLUs first, both had 20."""
    problem = still_channels.features()
    runs = [Run(method=methods.nft(), sparsity=0.985, seed=seed) for seed in (0, 1)]
    for own in [runs] if together else [[run] for run in runs]:
        for one in fit(
            still_channels.perceptron(norm_first=norm_first), problem, runs=own, recipe=decaying()
        ):
            with torch.no_grad():
                by_batch = copy.deepcopy(one.model).train()(problem.train.inputs).argmax(1)
            whole = predict(one.model, problem.train).predictions
            assert (by_batch == problem.train.labels).float().mean() > 0.5
            assert (whole == by_batch).float().mean() > 0.9
            assert one.masks.summary().silent[0] > 0


@pytest.mark.parametrize("traceable", [True, False])
def test_a_result_tells_of_models_that_answer_otherwise_in_evaluation(traceable: bool) -> None:
    """All their norms are left if the model cannot be traced."""
    samples = still_channels.features().train
    split = (samples.inputs + 1, samples.labels, samples.groups)  # sums above zero: one branch is taken
    new = (split[0][:200] + 0.01, *(part[:200] for part in split[1:]))
    layers = trained(still_channels.perceptron(norm_first=False), Split(*split), epochs=2)
    model = layers if traceable else Branching(layers)
    asked = {"sparsity": 0.985, "method": methods.nft(), "tolerance": 0.05}
    found = evenprune.prune(model, train=split, test=new, recipe=decaying(), hooks=[], **asked)
    told = [note for note in found.notes if "than while it was trained" in note]
    assert bool(told) is not traceable
    run = found.fitted[0]
    seen = _in_both_modes([replace(run, kept_epoch=7)])
    assert seen == {0: (run.history[7]["accuracy"], run.predictions["train"].correct.float().mean())}
    balanced = replace(run.run, method=replace(run.run.method, sampling="balanced"))
    assert _in_both_modes([replace(run, run=balanced)]) == {}  # rare groups count more in training
    assert _in_both_modes([replace(run, model=nn.Linear(40, 5))]) == {}
    if told:
        share = run.predictions["train"].correct.float().mean()
        assert f"(seed 0: {share:.0%} instead of {run.history[-1]['accuracy']:.0%})" in told[0]


@pytest.mark.parametrize("together", [True, False])
def test_pruned_models_answer_alike_in_training_and_evaluation_and_in_every_precision(together: bool) -> None:
    """With all their norms, filters that read constants made up to 100 % of the answers differ."""
    runs = [Run(method=methods.nft(), sparsity=0.93, seed=seed) for seed in (0, 2, 3)]
    problem, blind, spread, alike = still_channels.data(), 0, 0, list[float]()
    for own in [runs] if together else [[run] for run in runs]:
        for one in fit(still_channels.narrow(), problem, runs=own, recipe=still_channels.recipe(0.05)):
            by_batch = still_channels.in_training(one.model, problem.train)
            assert still_channels.least_motion(one.model, problem.train) > 1e-5  # nothing left stands still
            whole = predict(one.model, problem.train).predictions
            half = predict(one.model, problem.train, precision="bfloat16").predictions
            assert (whole == half).float().mean() > 0.95
            alike.append(float((whole == by_batch).float().mean()))
            blind += still_channels.blind(one.model)
            spread += len(whole.unique()) > 1
    assert statistics.median(alike) > 0.8  # where weights move to the end, running statistics lag behind
    assert blind > 0  # else this shows nothing
    assert spread > 1

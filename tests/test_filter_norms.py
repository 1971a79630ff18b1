"""A filter without weights takes its norm along: which norms, in which modes, in fleets, while training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from evenprune import fleet, methods
from evenprune.filter_norms import norms_after
from evenprune.masks import Masks
from evenprune.models import cifar_resnet56, mobilenet_v2, small_cnn
from evenprune.recipe import Data, Recipe, Run, Split
from evenprune.reference import DenseReference
from evenprune.training import fit


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


class Odd(nn.Module):
    """Pairs that are none: behind an activation, called twice, transposed, without weights, of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.behind = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4)
        self.again, self.twice = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.turned, self.after_turned = nn.ConvTranspose2d(4, 4, 1), nn.BatchNorm2d(4)
        self.plain, self.weightless = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, affine=False)
        self.left, self.right, self.summed = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.rows, self.own = nn.Linear(4, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.behind(F.relu(self.first(x)))
        x = self.twice(self.again(self.twice(self.again(x))))
        x = self.weightless(self.plain(self.after_turned(self.turned(x))))
        x = self.summed(self.left(x) + self.right(x))
        return self.own(self.rows(x.mean(dim=(2, 3))))


def test_only_norms_that_alone_read_a_layer_go_with_its_filters() -> None:
    assert norms_after(Odd()) == {"rows.weight": "own"}


def test_the_architectures_have_a_norm_behind_every_convolution() -> None:
    for model in (mobilenet_v2(5), cifar_resnet56(10), small_cnn()):
        convolutions = [n for n, module in model.named_modules() if isinstance(module, nn.Conv2d)]
        found = norms_after(model)
        assert set(found) == {f"{name}.weight" for name in convolutions}
        assert len(set(found.values())) == len(found)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = tiny()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if x.sum() > 0 else self.body(-x)  # type: ignore[no-any-return]


def test_a_model_that_cannot_be_traced_keeps_its_norms() -> None:
    model = disturbed(Branching())
    assert norms_after(model) == {}
    masks = Masks.of(model)
    masks.prune_(model, 0.9)
    assert masks.summary().silent == (0,)
    assert (model.body[4].weight != 0).all()


def test_norms_that_are_excluded_stay() -> None:
    model = disturbed(tiny())
    masks = Masks.of(model, exclude=["4"])
    masks.prune_(model, 0.9)
    assert set(masks.norms) == {"7.weight", "7.bias"}
    assert (model.get_parameter("4.weight") != 0).all()


# --- what it does ---


@given(st.integers(0, 10_000), st.floats(0.5, 0.97))
@settings(deadline=None, max_examples=30)
def test_norms_live_where_their_filters_do(seed: int, sparsity: float) -> None:
    model = disturbed(tiny(seed), seed)
    before = copy.deepcopy(model.state_dict())
    masks = Masks.of(model)
    masks.prune_(model, sparsity)
    gone = 0
    for layer, norm in (("3", "4"), ("6", "7")):
        for row, weights in enumerate(model.get_parameter(f"{layer}.weight")):
            empty = not weights.any()
            for part in ("weight", "bias"):
                kept = 0 if empty else before[f"{norm}.{part}"][row]
                assert model.get_parameter(f"{norm}.{part}")[row] == kept
                gone += empty
    assert masks.summary().silent == (gone,)
    nonzero = sum(int(p.count_nonzero()) for p in model.parameters())
    assert masks.summary().left == (nonzero,)  # nothing that is left is zero by chance


def test_the_channel_of_an_empty_filter_is_zero_in_every_mode_and_precision() -> None:
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
    masks = Masks.of(wide, runs=3, norms=norms_after(model))
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


def data(samples: int = 96) -> Data:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % 3
    inputs = torch.randn(samples, 1, 6, 6, generator=random) + labels.view(-1, 1, 1, 1)
    split = Split(inputs=inputs, labels=labels, groups=labels)
    right = torch.ones(samples)
    reference = DenseReference.from_outcomes(
        correct=right, losses=right, groups=labels, names=("a", "b", "c")
    )
    return Data(train=split, evaluate={"train": split}, reference=reference)


@pytest.mark.parametrize("runs", [1, 2])
def test_training_does_not_bring_them_back(runs: int) -> None:
    recipe = Recipe(epochs=6, pruning_epochs=3, batch_size=16, compile=False)
    asked = [Run(method=methods.nft(), sparsity=0.9, seed=seed) for seed in range(runs)]
    for one in fit(tiny(), data(), runs=asked, recipe=recipe):
        silent = 0
        for layer, norm in (("3", "4"), ("6", "7")):
            empty = ~one.model.get_parameter(f"{layer}.weight").flatten(1).any(1)
            for part in ("weight", "bias"):
                values: Any = one.model.get_parameter(f"{norm}.{part}")
                assert not values[empty].any()
                assert values[~empty].all()
            silent += 2 * int(empty.sum())
        assert one.masks.summary().silent == (silent,)
        assert silent > 0

"""Masks: exact counts, the order of pruning, patterns, persistence, and the errors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from evenprune.masks import Masks, SparsityNotReachable, choose, pruned_count, schedule, sparsity_per_run
from evenprune.models import cifar_resnet56, mlp, mobilenet_v2, resnet34, small_cnn
from tests.twins.masks import count, pattern_survivors, survivors


def one_layer(weight: torch.Tensor) -> tuple[nn.Linear, Masks]:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.weight.data = weight.clone()
    return layer, Masks.of(layer, keep=())


# Few distinct values, so that ties are common.
scores_and_alive = st.integers(1, 12).flatmap(
    lambda n: st.lists(
        st.tuples(
            st.lists(st.integers(0, 4), min_size=n, max_size=n),
            st.lists(st.booleans(), min_size=n, max_size=n),
        ),
        min_size=1,
        max_size=4,
    )
)


@given(scores_and_alive, st.data())
@settings(max_examples=100)
def test_choose_is_a_sort_of_every_run_with_exact_counts(
    runs: list[tuple[list[int], list[bool]]], data: st.DataObject
) -> None:
    size = len(runs[0][0])
    gone = [data.draw(st.integers(alive.count(False), size)) for _, alive in runs]
    scores = torch.tensor([scores for scores, _ in runs], dtype=torch.float32)
    alive = torch.tensor([alive for _, alive in runs])
    mask = choose(scores, alive, torch.tensor(gone))
    assert mask.tolist() == [survivors(s, a, k) for (s, a), k in zip(runs, gone, strict=True)]
    assert (~mask).sum(1).tolist() == gone
    assert not (mask & ~alive).any()


def test_scores_of_minus_infinity_do_not_bring_dead_weights_back() -> None:
    scores = torch.tensor([[-torch.inf, 5.0, 1.0]])
    mask = choose(scores, torch.tensor([[True, False, True]]), torch.tensor([1]))
    assert mask.tolist() == [[True, False, True]]


@given(st.integers(0, 9999), st.integers(1, 50_000_000))
@settings(max_examples=300)
def test_count_is_the_exact_ceiling(numerator: int, size: int) -> None:
    decimal = f"0.{numerator:04d}"
    assert pruned_count(float(decimal), size) == count(decimal, size)


def test_count_where_plain_floats_go_wrong() -> None:
    assert 0.07 * 100 > 7
    assert pruned_count(0.07, 100) == 7


def test_schedule_is_cubic_and_ends_at_the_final_sparsity() -> None:
    values = [schedule(t, final=0.9, initial=0.1, last=14) for t in range(17)]
    assert values[0] == pytest.approx(0.1)
    assert values[7] == pytest.approx(0.9 - 0.8 / 8)
    assert values[14:] == [0.9] * 3
    assert values == sorted(values)


def test_schedule_of_no_length_prunes_at_once_and_takes_one_value_per_run() -> None:
    assert schedule(0, final=0.9, last=0) == 0.9
    finals = torch.tensor([0.8, 0.4], dtype=torch.float64)
    torch.testing.assert_close(schedule(1, final=finals, last=2), finals * (1 - 1 / 8))


@pytest.mark.parametrize(
    ("build", "prunable", "left"),
    [
        (lambda: mobilenet_v2(5), 2_188_896, {0.85: 369_698, 0.9: 260_248, 0.925: 205_531}),
        (lambda: cifar_resnet56(100), 850_432, {0.9: 96_205, 0.925: 74_937, 0.95: 53_687}),
        pytest.param(lambda: resnet34(7), 21_258_240, {0.99: 242_587}, marks=pytest.mark.slow),
    ],
)
def test_counts_of_the_three_architectures(build: Any, prunable: int, left: dict[float, int]) -> None:
    model = build()
    masks = Masks.of(model)
    for sparsity, expected in left.items():  # raised step by step, as a schedule does
        masks.prune_(model, sparsity)
        summary = masks.summary()
        gone = sum(int((~mask).sum()) for mask in masks.kept().values() if mask.ndim == 1)
        assert (summary.prunable, summary.left) == (prunable, (expected - gone,))
        assert summary.silent == (gone,)
        norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
        assert 2 * sum(int((norm.weight == 0).sum()) for norm in norms) == gone
    nonzero = sum(int(model.get_parameter(layer.name).count_nonzero()) for layer in masks.layers)
    assert nonzero == summary.prunable_left[0]


WEIGHTS = Path(__file__).parent.parent / "paper" / "weights"


@pytest.mark.parametrize(
    ("build", "file", "printed"),
    [
        (lambda: mobilenet_v2(5), "utkface_race", {0.85: 366_946, 0.9: 255_250, 0.925: 198_709}),
        (lambda: cifar_resnet56(100), "cifar100_resnet56", {0.9: 96_179, 0.925: 74_889, 0.95: 53_621}),
    ],
)
def test_as_many_parameters_are_active_as_the_paper_prints(
    build: Any, file: str, printed: dict[float, int]
) -> None:
    """Of other dense models; with the norms of empty filters there would be up to 3.4 % more."""
    model = build()
    kept = safetensors.torch.load_file(WEIGHTS / f"{file}.safetensors")
    model.load_state_dict({name: t.float() if t.is_floating_point() else t for name, t in kept.items()})
    masks = Masks.of(model)
    for sparsity, expected in printed.items():
        masks.prune_(model, sparsity)
        assert masks.summary().left[0] == pytest.approx(expected, rel=0.0035)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_pruned_weights_never_return(seed: int) -> None:
    torch.manual_seed(seed)
    model = mlp(6, (10, 10), 3)
    masks = Masks.of(model)
    before = masks["2.weight"].clone()
    for sparsity in (0.2, 0.5, 0.5, 0.9):
        masks.prune_(model, sparsity)
        assert not (masks["2.weight"] & ~before).any()
        before = masks["2.weight"].clone()
        model[2].weight.data.normal_()  # training would move them back
        masks.apply_(model)
        assert torch.equal(model[2].weight != 0, before)


def test_global_scope_cuts_the_lowest_of_all_layers_together() -> None:
    model = mlp(4, (6, 5), 3)
    masks = Masks.of(model, keep=())
    flat = torch.cat([model[i].weight.detach().abs().flatten() for i in (0, 2, 4)])
    expected = survivors(flat.tolist(), [True] * flat.numel(), count("0.6", flat.numel()))
    masks.prune_(model, 0.6, scope="global")
    assert torch.cat([masks[f"{i}.weight"].flatten() for i in (0, 2, 4)]).tolist() == expected


def test_one_sparsity_per_run() -> None:
    weight = torch.randn(3 * 20, 7)
    layer, _ = one_layer(weight)
    masks = Masks.of(layer, runs=3, keep=())
    masks.prune_(layer, torch.tensor([0.0, 0.5, 0.925]))
    gone = [0, 70, count("0.925", 140)]
    assert masks.summary().layers[0].left == tuple(140 - k for k in gone)
    assert masks.sparsity.tolist() == pytest.approx([k / 140 for k in gone])
    for run, k in enumerate(gone):
        own = weight[20 * run : 20 * (run + 1)].abs().flatten().tolist()
        assert masks.extract(run)["weight"].flatten().tolist() == survivors(own, [True] * 140, k)


def test_float32_sparsities_mean_what_they_say() -> None:
    assert sparsity_per_run(torch.tensor([0.925, 0.1]), 2) == [0.925, 0.1]
    assert sparsity_per_run(0.3, 2) == [0.3, 0.3]


@given(st.integers(0, 10_000), st.sampled_from([(2, 4), (1, 4), (1, 2), (3, 4)]), st.floats(0, 1))
@settings(max_examples=60)
def test_pattern_is_kept_on_the_way_and_complete_at_the_end(
    seed: int, pattern: tuple[int, int], share: float
) -> None:
    kept, of = pattern
    weight = torch.randint(-9, 10, (5, 8), generator=torch.Generator().manual_seed(seed)).float()
    layer, masks = one_layer(weight)
    wanted = share * (1 - kept / of)
    masks.prune_(layer, wanted, pattern=pattern)
    expected = pattern_survivors(weight.abs().tolist(), kept=kept, of=of, gone=pruned_count(wanted, 40))
    assert masks["weight"].tolist() == expected
    masks.prune_(layer, 1 - kept / of, pattern=pattern)
    assert (masks["weight"].reshape(-1, of).sum(1) == kept).all()


def test_pattern_runs_along_the_input_channels_of_a_convolution() -> None:
    layer = nn.Conv2d(8, 3, 3)
    masks = Masks.of(layer, keep=())
    masks.prune_(layer, 0.5, pattern=(2, 4))
    assert (masks["weight"].movedim(1, -1).reshape(-1, 4).sum(1) == 2).all()


def test_what_is_prunable_by_rule_and_by_name() -> None:
    def names(**rules: Any) -> list[str]:
        return [layer.name for layer in Masks.of(small_cnn(), **rules).layers]

    assert names() == ["conv2.weight", "conv3.weight"]
    assert names(keep=("last",)) == ["conv1.weight", "conv2.weight", "conv3.weight"]
    assert names(exclude=["conv2"]) == ["conv3.weight"]
    assert names(keep=(), exclude=["conv[12]*"]) == ["conv3.weight", "fc.weight"]
    assert names(include=["fc.weight"], exclude=["conv3.weight"]) == ["conv2.weight", "fc.weight"]
    layers = {layer.name for layer in Masks.of(cifar_resnet56(), exclude=["*.downsample"]).layers}
    assert "layer2.0.conv1.weight" in layers
    assert not any("downsample" in name for name in layers)


def test_everything_unprunable_is_counted() -> None:
    model = small_cnn()
    summary = Masks.of(model).summary()
    assert summary.left == (sum(p.numel() for p in model.parameters()),)
    assert summary.prunable == 8 * 12 * 9 + 12 * 16 * 9
    assert "conv2.weight" in str(summary)
    assert f"{summary.left[0]:,} left" in str(summary)


def test_masks_survive_state_dict_and_deepcopy() -> None:
    model = small_cnn()
    masks = Masks.of(model)
    masks.prune_(model, 0.7)
    twin = copy.deepcopy(masks)
    fresh = Masks.of(small_cnn())
    fresh.load_state_dict(masks.state_dict())
    for other in (twin, fresh):
        assert other.summary() == masks.summary()
        assert torch.equal(other["conv3.weight"], masks["conv3.weight"])
    twin.prune_(model, 0.9)
    assert masks.summary() == fresh.summary()  # the copy has its own tensors


def test_masks_move_between_devices_and_memory_formats() -> None:
    model = small_cnn().to(memory_format=torch.channels_last)
    masks = Masks.of(model)
    masks.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    masks.prune_(model, 0.7)
    plain = small_cnn()
    plain.load_state_dict(model.state_dict())
    again = Masks.of(plain)
    again.prune_(plain, 0.7)
    assert torch.equal(masks["conv3.weight"], again["conv3.weight"])
    moved = masks.to("meta")
    assert {buffer.device.type for buffer in moved.buffers()} == {"meta"}


class RecordOps(TorchDispatchMode):
    """Names of all tensor operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def test_apply_is_one_operation_in_place_without_a_wait() -> None:
    model = small_cnn()
    masks = Masks.of(model)
    masks.prune_(model, 0.5)
    with RecordOps() as ops:
        masks.apply_(model)
    assert ops.names == {"aten._foreach_mul_.List"}


def test_own_scores_decide() -> None:
    layer, masks = one_layer(torch.arange(1.0, 7.0).reshape(2, 3))
    masks.prune_(layer, 0.5, scores={"weight": -layer.weight.detach()})
    assert layer.weight.tolist() == [[1, 2, 3], [0, 0, 0]]


def test_a_sparsity_that_takes_a_whole_layer_is_refused_before_anything_changes() -> None:
    layer, masks = one_layer(torch.ones(2, 10))
    with pytest.raises(
        SparsityNotReachable, match=r"weight: all 20 weights would go; at most 0\.95 leaves one"
    ):
        masks.prune_(layer, 0.96)
    assert masks.summary().prunable_left == (20,)


def test_a_lower_sparsity_than_before_is_refused() -> None:
    layer, masks = one_layer(torch.randn(2, 10))
    masks.prune_(layer, 0.5)
    with pytest.raises(SparsityNotReachable, match=r"10 of 20 weights \(0\.5\) are gone already in run 0"):
        masks.check_reachable(0.4)
    masks.check_reachable(0.5)


def test_a_pattern_that_does_not_fit_is_refused_with_every_reason() -> None:
    masks = Masks.of(small_cnn(channels=(6, 12, 16)))
    with pytest.raises(SparsityNotReachable) as error:
        masks.check_reachable(0.9, pattern=(2, 4))
    assert "2:4 reaches 0.5 at most" in str(error.value)
    assert "conv2.weight: 6 inputs do not divide into 4s" in str(error.value)
    assert "conv3.weight" not in str(error.value)


def test_a_pattern_on_top_of_masks_that_break_it_is_refused() -> None:
    layer, masks = one_layer(torch.tensor([[0.1, 0.2, 0.3, 9.0, 5.0, 6.0, 7.0, 8.0]]))
    masks.prune_(layer, 0.375)
    with pytest.raises(SparsityNotReachable, match="some 4 neighbours have fewer than 2 left"):
        masks.prune_(layer, 0.5, pattern=(2, 4))


@pytest.mark.parametrize("sparsity", [1.0, -0.1, float("nan")])
def test_sparsities_outside_zero_and_one_are_refused(sparsity: float) -> None:
    layer, masks = one_layer(torch.randn(2, 10))
    with pytest.raises(SparsityNotReachable, match=r"\[0, 1\)"):
        masks.prune_(layer, sparsity)


def test_wrong_arguments_are_named() -> None:
    layer, masks = one_layer(torch.randn(2, 10))
    with pytest.raises(ValueError, match="2 values for 1 runs"):
        masks.prune_(layer, [0.1, 0.2])
    with pytest.raises(TypeError, match="bfloat16"):
        masks.prune_(layer, torch.tensor(0.5, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"no parameter matches 'head\*'.*conv1\.weight"):
        Masks.of(small_cnn(), exclude=["head*"])
    with pytest.raises(ValueError, match="Nothing to prune in Linear"):
        Masks.of(layer)
    with pytest.raises(ValueError, match="does not divide into 3 runs"):
        Masks.of(layer, runs=3, keep=())
    with pytest.raises(ValueError, match="without a wrapper"):
        masks.apply_(nn.Sequential(layer))
    with pytest.raises(ValueError, match="must not be negative"):
        schedule(-1, final=0.5, last=3)


def test_weights_meet_masks_of_their_own_kind_that_stay_in_place() -> None:
    """One kernel serves pairs of the same type and layout; graphs read them where they were."""
    model = small_cnn().to(memory_format=torch.channels_last)
    masks = Masks.of(model)
    masks.prune_(model, 0.5)
    weights = [model.get_parameter(name) for name in masks.kept()]
    kept = masks._factors(weights)
    assert [(k.dtype, k.stride()) for k in kept] == [(w.dtype, w.stride()) for w in weights]
    places = [k.data_ptr() for k in kept]
    masks.prune_(model, 0.9)
    again = masks._factors(weights)
    assert [k.data_ptr() for k in again] == places
    assert all(torch.equal(k.bool(), mask) for k, mask in zip(again, masks.kept().values(), strict=True))


def test_masks_that_were_read_or_moved_are_followed() -> None:
    model = small_cnn()
    masks, other = Masks.of(model), Masks.of(model)
    masks.apply_(model)
    other.prune_(copy.deepcopy(model), 0.5)
    masks.load_state_dict(other.state_dict())
    masks.apply_(model)
    zeros = [int((model.get_parameter(layer.name) == 0).sum()) for layer in masks.layers]
    assert zeros == [pruned_count(0.5, layer.size) for layer in masks.layers]
    wide = copy.deepcopy(model).double()
    copied = copy.deepcopy(masks)
    copied.prune_(wide, 0.75)
    copied.apply_(wide)
    kept = copied._factors([wide.get_parameter(name) for name in masks.kept()])
    assert {k.dtype for k in kept} == {torch.float64}
    assert torch.allclose(copied.sparsity, torch.tensor(0.75, dtype=torch.float64), atol=0.01)
    assert torch.allclose(masks.sparsity, torch.tensor(0.5, dtype=torch.float64), atol=0.01)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda masks: pickle.loads(pickle.dumps(masks))])
def test_copies_of_masks_follow_their_own(copied: Any) -> None:
    model = small_cnn()
    masks, other = Masks.of(model), Masks.of(model)
    masks.prune_(model, 0.1)
    other.prune_(copy.deepcopy(model), 0.5)
    masks.load_state_dict(other.state_dict())
    copied(masks).apply_(model)
    zeros = [int((model.get_parameter(layer.name) == 0).sum()) for layer in masks.layers]
    assert zeros >= [pruned_count(0.5, layer.size) for layer in masks.layers]


def test_masks_serve_within_and_around_inference_mode() -> None:
    model = small_cnn()
    masks = Masks.of(model)
    with torch.inference_mode():
        masks.apply_(model)
        within = Masks.of(model)
    masks.prune_(model, 0.5)
    within.apply_(model)
    assert float(masks.sparsity) == pytest.approx(0.5, abs=0.01)

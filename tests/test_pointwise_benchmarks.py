"""The benchmark of 1×1 convolutions: what of it a CPU can run, and what it prints and chooses."""

import time

import pytest
import torch

from benchmarks import pointwise_conv as benchmark
from benchmarks import pointwise_settings, setting_search
from benchmarks.mobilenet_layers import PARTS
from benchmarks.pointwise_conv import Layer, Tensors, layers
from benchmarks.pointwise_settings import (
    TABLES,
    Case,
    Option,
    all_cases,
    cases,
    chosen,
    options,
    report,
    using,
)
from evenprune.pointwise_conv import PAIR_UP, PRODUCT, Setting, block_of

WIDEN = Case("product", Layer(16, 96, 64))
PAIRS = Case("pair_up", Layer(24, 144, 32))


def test_layers_are_those_of_the_model() -> None:
    found = layers()
    assert sum(found.values()) == 34
    assert len(found) == 19
    assert found[Layer(24, 144, 32)] == 2
    assert Layer(24, 144, 32).moved(5) == 2 * 128 * 32 * 32 * 5 * (24 + 144)


def test_the_rival_computes_what_autograd_does() -> None:
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, 3, 1, 1, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.conv2d(x, weight, groups=2)
    dy = torch.randn_like(y)
    expected = dict(zip(PARTS, (y, *torch.autograd.grad(y, (x, weight), dy)), strict=True))
    for part, work in benchmark.plain(*Tensors([x.detach()], [dy], weight.detach(), 2)).items():
        torch.testing.assert_close(work(0), expected[part].detach())


def test_the_table_ends_with_totals() -> None:
    times = {"forward": 10.0, "input": 20.0, "weight": 30.0}
    row = {"ours_us": times, "cudnn_us": {p: 4 * us for p, us in times.items()}, "floor_us": 8.0}
    row |= {"runs": 5, "channels": 24, "out": 144, "side": 32, "layers": 2, "error": 2e-3, "used": True}
    text = "ours 10 / 20 / 30, cuDNN 40 / 80 / 120, floor 8; error 2e-03"
    assert benchmark.table({"rows": [row]}) == [
        ("5 runs, 24 → 144 × 32²", text, "ours is used"),
        ("5 runs, all layers", "ours 20 / 40 / 60, cuDNN 80 / 160 / 240, floor 16", ""),
    ]


# --- settings ---


def test_every_row_that_the_model_uses_is_tried_on_its_heaviest_layer() -> None:
    every, tried = all_cases(), cases()
    assert every[Case("product", Layer(160, 960, 4))] == 5  # three forward, two turned round
    assert len({(case.kernel, case.key) for case in tried}) == len(tried)
    assert {(case.kernel, case.key) for case in tried} == {(case.kernel, case.key) for case in every}
    for case in tried:
        rivals = [other for other in every if (other.kernel, other.key) == (case.kernel, case.key)]
        assert every[case] * case.layer.moved(5) == max(every[r] * r.layer.moved(5) for r in rivals)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_options_are_what_the_kernels_can_take(case: Case) -> None:
    present, *others = options(case)
    assert present == Option(case.kernel, case.key, TABLES[case.kernel][case.key]).within(case)
    assert 10 < len(others) == len(set(others))
    for option in (present, *others):
        pixels, inner, outer, warps, stages, programs, rounded = option.setting
        assert all(n & (n - 1) == 0 for n in (pixels, inner, outer, warps))
        assert min(pixels, inner, outer) >= 16
        assert stages > 1
        assert block_of(case.sides[1], outer) == outer  # no two options are the same in fact
        walks = case.kernel == "pair_up" or inner >= case.sides[0]
        assert (programs > 0) == walks
        assert not (rounded and walks)


def test_the_present_settings_are_compiled_first_and_each_kernel_once() -> None:
    wanted, tried = pointwise_settings.to_compile(), cases()
    assert [(case, options(case)[0].compiled()) for case in tried] == wanted[: len(tried)]
    assert len(wanted) == len(set(wanted))
    assert set(wanted) == {(case, option.compiled()) for case in tried for option in options(case)}
    assert {case for case, _ in wanted[len(tried) : 2 * len(tried)]} == set(tried)  # in turn


def test_the_fastest_is_chosen_and_the_present_stays_where_nothing_was_timed() -> None:
    slow, fast, *_ = options(WIDEN)
    best = chosen({(WIDEN, slow): 3.0, (WIDEN, fast): 2.0})
    assert best["product"][16, 128] == fast.setting
    del best["product"][16, 128]
    assert best["product"] == {key: setting for key, setting in PRODUCT.items() if key != (16, 128)}
    assert best["pair_up"] == PAIR_UP


def test_an_option_is_used_for_as_long_as_it_is_asked_for() -> None:
    before, other = dict(PRODUCT), Setting(64, 16, 16, 1, 2, 3)
    with using(Option("product", (16, 128), other)):
        assert {**before, (16, 128): other} == PRODUCT
    assert before == PRODUCT


def test_the_report_names_the_best_and_the_used() -> None:
    slow, fast = options(PAIRS)[0], Option("pair_up", (256, 32), Setting(128, 32, 32, 2, 2, 528))
    (row,) = report({(PAIRS, slow): 9.0, (PAIRS, fast): 8.0}, chosen({}))
    assert setting_search.told(row) == (
        "5 runs, 24 → 144 × 32², pair_up: best 8.0 µs [128, 32, 32, 2, 2, 528, False], "
        f"used 9.0 {[*slow.setting]}, floor 52.4"
    )


def test_what_is_late_is_not_timed() -> None:
    pairs = [("case", 1), ("case", 2), ("case", 1)]
    assert setting_search.measure(pairs, lambda _, option: float(option), time.time() + 60) == (
        {("case", 1): 1.0, ("case", 2): 2.0},
        0,
    )
    assert setting_search.measure(pairs, lambda *_: 1.0, time.time() - 1) == ({}, 2)

"""The benchmarks that need a GPU: what of them a CPU can run, and what they print and choose."""

import io
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.autograd import DeviceType

from benchmarks import depthwise_conv, depthwise_settings, gpu_loop, images_per_second, setting_search
from benchmarks.depthwise_conv import Layer, Tensors
from benchmarks.depthwise_settings import Case, Option, cases, chosen, options, report, to_compile
from evenprune.depthwise_conv import SETTINGS, Setting
from evenprune.fleet import Fleet, Single
from evenprune.loop import Loop
from evenprune.models import small_cnn
from evenprune.recipe import Recipe

PARTS = {"forward": 10.0, "input": 20.0, "weight": 30.0}
WALK = Case("walk", Layer(384, 8, 1), 1)


def tiny_loop(runs: int, *, graph: bool) -> Loop:
    train = gpu_loop.images(40, side=8, classes=5, device=torch.device("cpu"))
    recipe = Recipe(batch_size=4, compile=False, graph=graph, channels_last=True)
    model = small_cnn(num_classes=5, in_channels=3)
    return gpu_loop.new_loop(model, runs, recipe.on(torch.device("cpu")), train, classes=5)


# --- training ---


@pytest.mark.parametrize(("runs", "graph", "kind"), [(1, False, Single), (2, True, Fleet)])
def test_a_loop_is_timed_after_pruning(runs: int, graph: bool, kind: type) -> None:
    loop = tiny_loop(runs, graph=graph)
    found = images_per_second.times(loop, turns=2, per_turn=3)
    assert isinstance(loop.network, kind)
    assert min(found.values()) > 0
    assert found["images_per_s"] == pytest.approx(1000 * runs * 4 / found["step_ms"])
    assert int(loop.now.place) == 3  # every turn begins at the first step of the epoch
    assert bool(loop.now.active)
    assert loop.masks.sparsity.tolist() == pytest.approx([0.925] * runs, abs=0.02)


def test_the_busiest_kernels_come_first() -> None:
    loop = tiny_loop(1, graph=False)
    gpu_loop.begin(loop)
    rows = images_per_second.busiest(loop, 2, on=DeviceType.CPU)
    assert [row["us"] for row in rows] == sorted((row["us"] for row in rows), reverse=True)
    (convolution,) = (row for row in rows if row["kernel"] == "aten::convolution")
    assert convolution["calls"] == sum(isinstance(m, nn.Conv2d) for m in loop.network.modules())
    written = io.StringIO()
    Console(file=written, width=200).print(images_per_second.kernel_table("tiny", rows, shown=3))
    assert rows[0]["kernel"] in written.getvalue()
    assert rows[3]["kernel"] not in written.getvalue()


def test_images_per_second_are_compared_with_eager_runs() -> None:
    def row(way: str, rate: float) -> dict[str, Any]:
        cost = {"compilation_s": 61.4, "step_ms": 7.125, "peak_gib": 3.21}
        return {"model": "MobileNetV2", "way": way, "runs": 1, "images_per_s": rate, **cost}

    rates = {"eager float32": 2_000, "eager bfloat16": 4_000, "fleet of 5": 30_000}
    figures = {"device": "H200", "torch": "2", "rows": [row(way, rate) for way, rate in rates.items()]}
    _, eager, _, fleet = images_per_second.table(figures)
    assert eager == ("MobileNetV2, eager float32", "2,000 images/s; step 7.12 ms; 3.2 GiB", "")
    assert fleet[1] == (
        "30,000 images/s; step 7.12 ms; 3.2 GiB; 15.0 × eager float32, 7.5 × eager bfloat16; compiled in 61 s"
    )


def test_every_way_has_nothing_left_open() -> None:
    ways = images_per_second.ways(torch.device("cuda"))
    assert [runs for runs, _ in ways.values()] == [1, 1, 1, 5]
    switches = {
        name: (recipe.precision, recipe.channels_last, recipe.compile, recipe.graph)
        for name, (_, recipe) in ways.items()
    }
    assert switches["eager float32"] == ("float32", False, False, False)
    assert switches["eager bfloat16"] == ("bfloat16", True, False, False)
    assert switches["fleet of 1"] == switches["fleet of 5"] == ("bfloat16", True, True, True)


# --- depthwise convolutions ---


def test_layers_are_those_of_the_model() -> None:
    found = depthwise_conv.layers()
    assert sum(found.values()) == 17
    assert found[Layer(960, 4, 1)] == 3
    assert found[Layer(96, 64, 2)] == 1
    assert Layer(96, 64, 2).moved(5) == 128 * 5 * 96 * (64 * 64 + 32 * 32) * 2


@pytest.mark.parametrize("stride", [1, 2])
def test_the_rival_computes_what_autograd_does(stride: int) -> None:
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.conv2d(x, weight, stride=stride, padding=1, groups=6)
    dy = torch.randn_like(y)
    expected = dict(zip(depthwise_conv.PARTS, (y, *torch.autograd.grad(y, (x, weight), dy)), strict=True))
    works = depthwise_conv.plain(*Tensors([x.detach()], [dy], weight.detach(), stride))
    for part, work in works.items():
        torch.testing.assert_close(work(0), expected[part].detach())


def test_the_table_ends_with_totals() -> None:
    row = {"ours_us": PARTS, "cudnn_us": {p: 10 * us for p, us in PARTS.items()}, "floor_us": 8.0}
    row |= {"runs": 5, "channels": 96, "side": 64, "stride": 2, "layers": 1, "error": 2e-3, "used": True}
    other = row | {"layers": 2, "stride": 1, "used": False}
    told = depthwise_conv.table({"rows": [row, other]})
    first = "ours 10 / 20 / 30, cuDNN 100 / 200 / 300, floor 8; error 2e-03"
    assert told == [
        ("5 runs, 96 × 64², stride 2", first, "ours is used"),
        ("5 runs, 96 × 64²", first, "cuDNN is used"),
        ("5 runs, all layers", "ours 30 / 60 / 90, cuDNN 300 / 600 / 900, floor 24", ""),
    ]


def test_options_can_be_launched_and_are_compiled_once() -> None:
    every = depthwise_settings.every_option()
    for _, block, (lanes, _, warps, _, programs) in every:
        assert lanes >= 1
        assert lanes & (lanes - 1) == 0
        assert lanes * block in (4 * 32 * warps, 8 * 32 * warps)
        assert programs >= 0
    once = to_compile(every)
    assert len(once) == 5 * 3 * 2 * 3 * 3
    assert {(o.kernel, o.block, o.setting.lanes, o.setting.warps, o.setting.stages) for o in every} == {
        (o.kernel, o.block, o.setting.lanes, o.setting.warps, o.setting.stages) for o in once
    }


def test_every_case_has_options_and_the_block_it_would_use_is_among_them() -> None:
    assert {case.kernel for case in cases()} == set(SETTINGS)
    for case in cases():
        blocks = {option.block for option in options(case.kernel) if option.suits(case)}
        assert depthwise_settings.block_of(case.channels, case.kernel) in blocks


def test_the_setting_with_the_least_total_is_chosen() -> None:
    """Option a wins in the layer of which there are many, b in the other one, c was not timed on both."""
    other = Case("walk", Layer(960, 4, 1), 1)
    a, b, c = (Option("walk", 128, Setting(lanes, 16, 4, 1)) for lanes in (4, 8, 4))
    c = c._replace(setting=c.setting._replace(stages=2))
    times = {(WALK, a): 2.0, (other, a): 4.0, (WALK, b): 3.0, (other, b): 1.0, (WALK, c): 0.1}
    found = {(case, option.within(case)): us for (case, option), us in times.items()}

    def winner(many: int) -> Setting:
        return chosen(found, {WALK: many, other: 1})["walk"][128]._replace(rows=16)

    assert winner(4) == a.setting  # 4 · 2 + 4 < 4 · 3 + 1
    assert winner(2) == b.setting
    assert chosen(found, {WALK: 1, other: 1})["grow"] == SETTINGS["grow"]  # not tried at all


def test_without_times_the_present_setting_stays() -> None:
    assert chosen({}, cases()) == {kernel: dict(table) for kernel, table in SETTINGS.items()}


def test_the_report_names_the_best_and_the_used() -> None:
    slow = Option("walk", 128, Setting(4, 16, 4, 1)).within(WALK)
    fast = Option("walk", 64, Setting(8, 16, 4, 1)).within(WALK)
    best = {kernel: dict(table) for kernel, table in SETTINGS.items()}
    best["walk"][128] = Setting(4, 16, 4, 1)
    (row,) = report({(WALK, slow): 9.0, (WALK, fast): 8.0}, best)
    told = setting_search.told(row)
    assert told == (
        "1 runs, 384 × 8², walk: best 8.0 µs [64, 8, 8, 4, 1, 0], used 9.0 [128, 4, 8, 4, 1, 0], floor 3.0"
    )

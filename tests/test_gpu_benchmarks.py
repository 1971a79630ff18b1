"""The benchmarks that need a GPU: what of them a CPU can run, and what they print and choose."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import benchmarks.__main__ as command
from benchmarks import depthwise_conv, depthwise_settings, gpu, gpu_loop, images_per_second, setting_search
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
    assert loop.now.active.tolist() == [True] * len(loop.runs)
    assert loop.masks.sparsity.tolist() == pytest.approx([0.925] * runs, abs=0.02)


def test_the_busiest_kernels_come_first() -> None:
    loop = tiny_loop(1, graph=False)
    gpu_loop.begin(loop)
    rows = gpu_loop.busiest(loop, 2)
    assert [row["us"] for row in rows] == sorted((row["us"] for row in rows), reverse=True)
    (convolution,) = (row for row in rows if row["kernel"] == "aten::convolution")
    assert convolution["calls"] == sum(isinstance(m, nn.Conv2d) for m in loop.network.modules())
    written = io.StringIO()
    Console(file=written, width=200).print(images_per_second.kernel_table("tiny", rows, shown=3))
    assert rows[0]["kernel"] in written.getvalue()
    assert rows[3]["kernel"] not in written.getvalue()


def test_images_per_second_are_compared_with_eager_runs() -> None:
    def row(way: str, rate: float) -> dict[str, Any]:
        cost = {"compilation_s": 61.4, "step_ms": 7.125, "peak_gib": 3.21, "compile": True}
        return {"model": "MobileNetV2", "way": way, "runs": 1, "images_per_s": rate, **cost}

    rates = {"eager float32": 2_000, "eager bfloat16": 4_000, "fleet of 5": 30_000}
    figures = {"device": "H200", "torch": "2", "rows": [row(way, rate) for way, rate in rates.items()]}
    _, eager, _, fleet = images_per_second.table([figures])
    assert eager == ("MobileNetV2, eager float32", "2,000 images/s; step 7.12 ms; 3.2 GiB", "")
    assert fleet[1] == (
        "30,000 images/s; step 7.12 ms; 3.2 GiB; 15.0 × eager float32, 7.5 × eager bfloat16; "
        "first steps 61 s, torch.compile True"
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
    assert switches["fleet of 1"] == switches["fleet of 5"]
    assert (switches["fleet of 1"][:2], switches["fleet of 1"][3]) == (("bfloat16", True), True)


# --- fleets of CifarResNet-56, here of a small network ---

CPU = torch.device("cpu")
SMALL = Recipe(batch_size=16, compile=False, graph=True, channels_last=True, evaluate_batch=32)


def small() -> nn.Module:
    return small_cnn((4, 6, 6), num_classes=5, in_channels=3)


def small_images(samples: int) -> Any:
    return gpu_loop.images(samples, side=8, classes=5, device=CPU)


def out_of_memory() -> None:
    """As a capture tells of it: torch's own error is its cause."""
    try:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    except RuntimeError as error:
        raise RuntimeError("A step cannot be captured as a CUDA graph") from error


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A measurement as it grows: fleets of 3, which are too large, 1 and 2; what is compiled is too large."""
    torch.set_num_threads(1)
    real = gpu.fleet

    def fleet(make: Any, runs: int, recipe: Recipe, *splits: Any) -> Any:
        return out_of_memory() if runs == 3 or recipe.compile else real(make, runs, recipe, *splits)

    told = {"fleet": fleet, "FLEETS": (3, 1, 2), "MAIN": 2, "PROFILED": (1, 2), "TURNS": 2, "PER_TURN": 3}
    for name, value in told.items():
        monkeypatch.setattr(gpu, name, value)
    train, test = small_images(400), small_images(50)
    grown = gpu.measured(small, (), SMALL, train, test, rate=4e12)
    return [json.loads(json.dumps(state)) for state in grown]


def test_a_measurement_grows_fleet_by_fleet_and_goes_on_where_memory_ends(
    states: list[dict[str, Any]],
) -> None:
    ways = ["fleet of 3", "fleet of 1", "fleet of 2", "fleet of 2, compile=True"]
    assert [[row["way"] for row in state["fleets"]] for state in states] == [
        ways[:1], ways[:2], ways[:3], ways[:3], ways,
    ]  # fmt: skip
    large, one, two, compiled = states[-1]["fleets"]
    assert large == {"way": "fleet of 3", "runs": 3, "out_of_memory": True}
    assert compiled["out_of_memory"]
    for row in (one, two):
        assert not row["compile"]
        assert row["ratio"] == pytest.approx(row["ceag_step_ms"] / row["nft_step_ms"])
        epoch = 25 * row["ceag_step_ms"] / 1000 + row["evaluation_s"]  # 400 images, batches of 16
        assert row["epoch_s"] == pytest.approx(epoch)
        assert row["seconds_per_run"] * row["runs"] > 60 * epoch + row["compilation_s"]
        assert row["times_eager"] == pytest.approx(
            states[-1]["eager_float32_step_ms"] * row["runs"] / row["ceag_step_ms"]
        )
        times = [kernel["us"] for kernel in row["kernels"]["busiest"]]
        assert len(times) == gpu.KERNELS
        assert times == sorted(times, reverse=True)
        assert sum(times) / 1000 <= row["kernels"]["ms"]
        assert "peak_gib" not in row  # of a GPU's memory


def test_an_epoch_of_fit_stands_beside_the_predicted_one(states: list[dict[str, Any]]) -> None:
    *_, before, after, _ = states
    assert "fit" not in before["fleets"][2]
    found = after["fleets"][2]["fit"]
    assert len(found["epochs_s"]) == 3
    assert found["epoch_s"] == found["epochs_s"][1] > 0
    assert found["seconds"] > sum(found["epochs_s"])
    assert all("fit" not in row for row in after["fleets"][:2])


def test_another_error_than_the_end_of_memory_is_not_swallowed() -> None:
    def broken() -> Any:
        raise RuntimeError("device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side"):
        gpu.unless_memory_ends(broken)
    assert gpu.unless_memory_ends(lambda: {"fine": 1}) == {"fine": 1}


def test_constraints_are_back_after_steps_without() -> None:
    loop = tiny_loop(1, graph=False)
    gpu_loop.begin(loop)
    gpu_loop.steps(loop, 5)
    plan, replay = loop.plan, loop.replay
    times = gpu.step_times(loop)
    assert min(times["ceag"], times["nft"]) > 0
    assert loop.plan is plan
    assert loop.replay is replay


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # of torch's own import
@pytest.mark.parametrize("switch", [True, False])
def test_a_compiled_loop_is_told_from_a_plain_one(switch: bool) -> None:
    recipe = Recipe(batch_size=4, compile=switch).on(CPU)
    loop = gpu_loop.new_loop(small(), 1, recipe, small_images(40), classes=5)
    assert gpu_loop.is_compiled(loop) is switch


def test_the_fleet_of_25_is_also_compiled_unless_fleets_are_named() -> None:
    assert [(way, changes) for way, _, changes in gpu.ways(())][2:] == [
        ("fleet of 10", {}),
        ("fleet of 25", {}),
        ("fleet of 25, compile=True", {"compile": True}),
        ("fleet of 45", {}),
    ]
    assert [way for way, *_ in gpu.ways((25, 1))] == ["fleet of 25", "fleet of 1"]


def made_up(step: float, **more: Any) -> dict[str, Any]:
    kernel = {"kernel": "void walk<16>()", "us": 1000 * step / 5, "calls": 19.0}
    row = {
        "way": "fleet of 25", "runs": 25, "compile": False, "ceag_step_ms": step, "nft_step_ms": step / 1.005,
        "ratio": 1.005, "compilation_s": 3.0, "evaluation_s": 0.5, "epoch_s": 11.0, "seconds_per_run": 26.5,
        "peak_gib": 7.25, "share_of_floor": 0.45, "times_eager": 18.6,
        "kernels": {"ms": step, "busiest": [kernel]}, "fit": {"epoch_s": 11.2},
    }  # fmt: skip
    whole = {"device": "H200", "torch": "2", "commit": "abc1234", "date": "2026-01-01", "copy_tb_per_s": 4.2}
    whole |= {"caches": {"triton": "cold", "inductor": "warm"}, "eager_float32_step_ms": 20.1}
    return whole | {"eager_peak_gib": 1.5, "fleets": [row | more]}


def test_the_newest_measurement_stands_beside_the_one_before() -> None:
    compiled = {"way": "fleet of 45", "out_of_memory": True}
    newest = made_up(26.75) | {"commit": "def5678"}
    newest["fleets"].append(compiled)
    rows = {what: cells for what, *cells in gpu.table([made_up(99.0), made_up(29.25), newest])}
    assert rows["commit, date"] == ["def5678, 2026-01-01", "abc1234, 2026-01-01", ""]
    assert rows["caches of kernels"][0] == "Triton cold, Inductor warm"
    assert rows["  peak memory"] == ["7.25 GiB", "7.25 GiB", ""]
    assert rows["fleet of 25"] == ["26.5 s a run", "26.5 s a run", "≤ 25 s"]
    assert rows["  CEAG step"] == ["26.75 ms", "29.25 ms", ""]
    assert rows["  an epoch of fit()"] == ["11.20 s", "11.20 s", "as predicted"]
    assert rows["  kernel void walk<16>()"] == ["5350 µs, 19 calls", "5850 µs, 19 calls", ""]
    assert rows["fleet of 45"] == ["out of memory", "–", ""]
    alone = gpu.table([made_up(26.75)])
    assert {before for _, _, before, _ in alone} == {"–"}
    assert len(gpu.HEADINGS) == len(alone[0])


# --- what is kept ---


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setenv("EVENPRUNE_COMMIT", "abc1234")
    return tmp_path / "results" / "gpu.json"


def test_two_runs_stand_in_one_file_and_each_part_is_written_at_once(results: Path) -> None:
    def growing(name: str) -> Iterator[dict[str, Any]]:
        for parts in (1, 2):
            yield {"name": name, "parts": parts}
            last = json.loads(results.read_text())["measurements"][-1]
            assert (last["name"], last["parts"]) == (name, parts)  # before the next part begins

    command.grow("gpu", growing("first"))
    found = command.grow("gpu", growing("second"))
    document = json.loads(results.read_text())
    assert document["measurements"] == found
    assert [(one["name"], one["parts"]) for one in found] == [("first", 2), ("second", 2)]
    assert all(one["commit"] == "abc1234" and one["date"] and one["seconds"] >= 0 for one in found)


def test_a_benchmark_that_fails_leaves_what_it_had(results: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield {"parts": 1}
        raise RuntimeError("lost")

    command.grow("gpu", iter([{"parts": 9}]))
    with pytest.raises(RuntimeError, match="lost"):
        command.grow("gpu", failing())
    assert [one["parts"] for one in json.loads(results.read_text())["measurements"]] == [9, 1]


def test_numbers_follow_the_benchmark_that_takes_them() -> None:
    assert command.asked(["gpu", "1", "25", "coverage"]) == [("gpu", (1, 25)), ("coverage", ())]
    assert [name for name, _ in command.asked([])] == list(command.NAMES)
    with pytest.raises(SystemExit) as end:
        command.asked(["5", "gpuu", "coverage", "3", "gpu", "0"])
    said = str(end.value)
    assert all(f"{number}: numbers follow gpu" in said for number in (5, 3, 0))
    assert "no benchmark gpuu; there are audit_speed" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["gpu", "images_per_second"])
def test_without_a_gpu_it_says_where_to_go_and_writes_nothing(name: str, results: Path) -> None:
    with pytest.raises(SystemExit, match="machine with an NVIDIA GPU; `make bench` is for CPUs"):
        command.main([name])
    assert not results.parent.exists()


def test_caches_are_cold_until_something_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    (tmp_path / "inductor").mkdir()
    assert gpu_loop.caches() == {"triton": "cold", "inductor": "cold"}
    (tmp_path / "inductor" / "x").touch()
    assert gpu_loop.caches() == {"triton": "cold", "inductor": "warm"}


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

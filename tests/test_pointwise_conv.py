"""1×1 convolutions: the kernels in Triton's interpreter and as machine code, and where they are used."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evenprune import pointwise_conv
from evenprune.fleet import widen
from evenprune.grouped_conv import Shape
from evenprune.models import mobilenet_v2
from evenprune.pointwise_conv import PAIR_UP, PRODUCT, SIZES, block_of, fits, size_of
from evenprune.wide_layers import WideConv2d
from tests.kernel_process import interpreted, needs_triton

ROOT = Path(__file__).parent.parent
BOUNDS = {"float32": 1e-6, "turned": 1e-6, "weight": 1e-6, "images": 2**-10}  # float16 has eleven bits
POINTWISE = Shape(1, 1, 0, 4)


@pytest.mark.slow
@needs_triton
def test_kernels_agree_with_the_plain_convolution() -> None:
    """Result and all gradients. In a process of its own: importing Triton chooses the interpreter."""
    printed = interpreted("pointwise_convs")
    lines = [line.split() for line in printed]
    assert len(lines) == 24
    assert all(float(error) < BOUNDS[what] for *_, what, error in lines), printed


def layer(*size: int, channels: int = 64, shape: Shape = POINTWISE, images: int = 2, side: int = 8) -> bool:
    """Whether a layer with a weight of this size fits; nothing is computed."""
    x = torch.empty(images, channels, side, side, device="meta", dtype=torch.bfloat16)
    return fits(x, torch.empty(size, device="meta"), shape)


def test_which_layers_fit() -> None:
    assert layer(4 * 96, 16, 1, 1)
    assert layer(4 * 5, 3, 1, 1, channels=12, side=7)
    assert not layer(4 * 96, 16, 1, 1, shape=Shape(1, 2, 0, 4))
    assert not layer(4 * 96, 16, 1, 1, shape=Shape(1, 1, 1, 4))
    assert not layer(4 * 96, 16, 3, 3, shape=Shape(3, 1, 1, 4))
    assert not layer(4 * 96, 8, 1, 1)  # eight groups
    assert layer(64, 16, 1, 1, images=2**13 - 1, side=64)
    assert not layer(64, 16, 1, 1, images=2**13, side=64)  # 2³¹ elements come in
    assert not layer(128, 16, 1, 1, images=2**12, side=64)  # 2³¹ elements go out
    assert not layer(4 * 96, 16, 1, 1, images=0)


def test_on_the_cpu_the_plain_convolution_serves() -> None:
    x, weight = torch.randn(2, 64, 8, 8, dtype=torch.bfloat16), torch.randn(64, 16, 1, 1)
    assert fits(x, weight, POINTWISE)
    assert not pointwise_conv.serves(x, weight, POINTWISE)


def test_every_1_by_1_layer_of_a_widened_mobilenet_fits() -> None:
    wide = widen(mobilenet_v2(5), 3, sample_input=torch.zeros(2, 3, 32, 32), check=False)
    found = []

    def look(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        assert isinstance(module, WideConv2d)
        shape = module._shape()
        served = shape is not None and fits(inputs[0], module.weight, shape)
        found.append((served, module.kernel_size == (1, 1)))

    for module in wide.modules():
        if isinstance(module, WideConv2d):
            module.register_forward_hook(look)
    wide.to("meta")(torch.zeros(3, 2, 3, 32, 32, device="meta"))
    assert sum(served for served, _ in found) == 34
    assert all(served == pointwise for served, pointwise in found)


@given(st.integers(1, 5000), st.sampled_from([16, 32, 64, 128]))
def test_little_of_the_last_block_is_unused(channels: int, most: int) -> None:
    block = block_of(channels, most)
    padded = {b: -(-channels // b) * b for b in (16, 32, 64, 128) if b <= most}
    assert padded[block] <= channels * 4 / 3 or block == 16
    assert all(padded[larger] > channels * 4 / 3 for larger in padded if larger > block)


@pytest.mark.parametrize(
    ("channels", "size"), [((1, 16), (16, 16)), ((17, 128), (32, 128)), ((129, 5000), (256, 256))]
)
def test_the_row_of_a_table(channels: tuple[int, int], size: tuple[int, int]) -> None:
    assert size_of(*channels) == size


def test_settings_are_what_the_kernels_can_take() -> None:
    """Powers of two of at least 16, a row for every size, and a number of programs where it is asked for."""
    assert set(PRODUCT) == {(i, o) for i in SIZES for o in SIZES}
    assert set(PAIR_UP) == {(w, n) for w in SIZES for n in SIZES if n <= w}
    for setting in (*PRODUCT.values(), *PAIR_UP.values()):
        assert all(n & (n - 1) == 0 for n in (*setting[:3], setting.warps))
        assert min(setting[:3]) >= 16
        assert setting.stages >= 1
    for (inner, _), setting in PRODUCT.items():
        walks = setting.inner >= inner and inner < SIZES[-1]
        assert walks == (setting.programs > 0), setting
    assert all(setting.programs > 0 and not setting.rounded for setting in PAIR_UP.values())


# --- compiled for a GPU that need not be there ---


def compiled(kernel: Any, pointers: dict[str, str], numbers: tuple[str, ...], known: dict[str, Any]) -> str:
    """The assembly code of a kernel for compute capability 9.0."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, options = kernel.arg_names, {k: known.pop(k) for k in ("num_warps", "num_stages")}
    options |= {"enable_fp_fusion": True}  # the default, of which some versions warn
    kinds = {**pointers, **dict.fromkeys(numbers, "i32"), **dict.fromkeys(known, "constexpr")}
    source = ASTSource(
        fn=kernel,
        signature={name: kinds[name] for name in names},
        constexprs={(names.index(name),): value for name, value in known.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert made.metadata.shared <= 227 * 1024  # bytes of an H100's program
    return str(made.asm["ptx"])


class Caught:
    """Stands where a kernel is launched, and compiles it instead."""

    def __init__(self, kernel: Any, kinds: tuple[str, str, str]) -> None:
        self.kernel, self.kinds, self.ptx = kernel, kinds, ""

    def __getitem__(self, grid: tuple[int]) -> Any:
        return self.launched

    def launched(self, *given: Any, **known: Any) -> None:
        names = self.kernel.arg_names
        pointers = dict(zip(names[:3], self.kinds, strict=True))
        self.ptx = compiled(self.kernel, pointers, tuple(names[3 : len(given)]), known)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    ("name", "channels", "out", "weight"),
    [
        ("spread", 24, 144, "*fp32"),  # 24 channels: 16 bytes divide the runs' places, 32 do not
        ("collect", 144, 24, "*fp32"),
        ("collect", 576, 96, "*bf16"),
        ("pair_up", 144, 24, "*bf16"),
    ],
)
def test_machine_code_moves_16_bytes_at_a_time(
    monkeypatch: pytest.MonkeyPatch, name: str, channels: int, out: int, weight: str
) -> None:
    from evenprune import pointwise_kernels

    last = "*fp32" if name == "pair_up" else "*bf16"
    caught = Caught(getattr(pointwise_kernels, name), ("*bf16", weight, last))
    monkeypatch.setattr(pointwise_conv.pointwise_kernels, name, caught)
    x, y = (torch.empty(8, 5 * c, 16, 16, dtype=torch.bfloat16, device="meta") for c in (channels, out))
    if name == "pair_up":
        pointwise_conv.launch_back(x, y, 5)
    else:
        pointwise_conv.launch(x, torch.empty(5 * out, channels, 1, 1, device="meta"), y, 5, turned=False)
    loads = re.findall(r"cp\.async\.\w+\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", caught.ptx)
    assert loads
    assert set(loads) == {"0x10"}
    others = set(re.findall(r"(?:ld|st)\.global[.\w]*", caught.ptx))  # the weight that stays, and results
    assert others <= {"ld.global.v4.b32", "st.global.v4.b32"}

"""Every kernel of pointwise_kernels.py against the plain convolution; with TRITON_INTERPRET=1 on any CPU."""

import torch
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from evenprune import pointwise_conv
from evenprune.pointwise_conv import PAIR_UP, PRODUCT, Setting

# channels in and out of one run, runs, images, height, width
CASES = [
    (16, 96, 1, 3, 4, 4),
    (24, 40, 3, 1, 5, 7),
    (3, 5, 3, 1, 1, 1),
    (33, 17, 3, 1, 3, 3),  # one more than a block of channels
    (150, 24, 1, 2, 4, 4),  # added up over blocks of channels
    (24, 150, 3, 1, 9, 2),
]


def errors(case: tuple[int, ...], kind: torch.dtype, *, bias: bool = False) -> list[float]:
    """‖ours - plain‖ / ‖plain‖ of the result and all gradients; the plain twin is float32."""
    channels, out, runs, images, height, width = case
    generator = torch.Generator().manual_seed(sum(case))

    def drawn(*size: int, of: torch.dtype = torch.float32) -> Tensor:
        values = torch.randn(size, generator=generator).to(of)
        return values.to(memory_format=torch.channels_last) if len(size) == 4 else values

    x = drawn(images, runs * channels, height, width, of=kind).requires_grad_()
    weight = drawn(runs * out, channels, 1, 1).requires_grad_()
    inputs = [x, weight, *([drawn(runs * out).requires_grad_()] if bias else [])]
    got = pointwise_conv.convolve(x, weight, inputs[2] if bias else None, runs)
    twins = [t.detach().to(kind).float().requires_grad_() for t in inputs]  # weights are rounded when loaded
    expected = functional.conv2d(*twins, groups=runs)
    assert got.dtype == kind
    assert got.shape == expected.shape
    assert got.is_contiguous(memory_format=torch.channels_last)
    grown = drawn(*expected.shape, of=kind)
    found = (got, *torch.autograd.grad(got, inputs, grown))
    truth = (expected, *torch.autograd.grad(expected, twins, grown.float()))
    return [distance(a, b) for a, b in zip(found, truth, strict=True)]


def turned_error(case: tuple[int, ...]) -> float:
    """The gradient of the input as an operation of its own, and the gradients of that."""
    channels, out, runs, *size = case
    images, *space = size
    x, weight = (
        torch.randn(s).requires_grad_() for s in ((images, runs * out, *space), (runs * out, channels, 1, 1))
    )
    got = pointwise_conv.pointwise_conv(x, weight, runs, True)
    expected = functional.conv_transpose2d(x, weight, groups=runs)
    grown = torch.randn(expected.shape)
    found, truth = ((y, *torch.autograd.grad(y, (x, weight), grown)) for y in (got, expected))
    return max(distance(a, b) for a, b in zip(found, truth, strict=True))


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.detach().float() - b.detach()).norm() / b.detach().norm().clamp(min=1e-6))


@seed(0)
@settings(deadline=None, max_examples=10, database=None, phases=[Phase.generate])  # shrinking takes minutes
@given(
    size=st.tuples(*[st.integers(1, most) for most in (33, 33, 2, 2, 4, 3)]),
    blocks=st.tuples(*[st.sampled_from([16, 32])] * 3),
    programs=st.integers(1, 9),
    rounded=st.booleans(),
)
def agrees_at_any_size(
    size: tuple[int, ...], blocks: tuple[int, int, int], programs: int, rounded: bool
) -> None:
    use(Setting(*blocks, 4, 1, programs, rounded))
    assert max(errors(size, torch.float32)) < 2e-6


def check_as_operations() -> None:
    """What torch.compile is told of them (shapes, strides, gradients) is what they do."""
    x, dy = (torch.randn(2, 2 * c, 4, 3).to(memory_format=torch.channels_last) for c in (5, 7))
    weight = torch.randn(2 * 7, 5, 1, 1).requires_grad_()
    torch.library.opcheck(pointwise_conv.pointwise_conv, (x.requires_grad_(), weight, 2, False))
    torch.library.opcheck(pointwise_conv.pointwise_conv, (dy.requires_grad_(), weight, 2, True))
    for least in (8, 1024):  # several sums, one sum
        pointwise_conv.LEAST_CHUNK = least
        torch.library.opcheck(pointwise_conv.pointwise_conv_back, (x.detach(), dy.detach(), 2))


def use(setting: Setting) -> None:
    """One setting for all layers."""
    for table in (PRODUCT, PAIR_UP):
        table.update(dict.fromkeys(table, setting))


if __name__ == "__main__":
    for case in CASES:  # as they are launched
        print(case, "float32", max(errors(case, torch.float32, bias=True)))
        print(case, "turned", turned_error(case))
    pointwise_conv.LEAST_CHUNK = 16
    use(Setting(16, 32, 16, 4, 1, 7))
    for case in CASES:
        *images, weight = errors(case, torch.float16)  # the interpreter cannot multiply bfloat16
        print(case, "float16 weight", weight)
        print(case, "float16 images", max(images))
    check_as_operations()
    pointwise_conv.LEAST_CHUNK = 16
    agrees_at_any_size()

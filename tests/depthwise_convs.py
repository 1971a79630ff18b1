"""Every kernel of depthwise_kernels.py against the plain convolution; with TRITON_INTERPRET=1 on any CPU."""

import torch
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from evenprune import depthwise_conv
from evenprune.depthwise_conv import Setting

# channels of one run, runs, images, height, width, stride
CASES = [
    (16, 1, 3, 6, 6, 1),
    (11, 3, 2, 5, 7, 1),  # 33 channels: one more than a block of 32
    (20, 3, 2, 7, 5, 2),  # 60: almost a block of 64
    (16, 1, 3, 8, 6, 2),
    (40, 3, 1, 4, 3, 1),  # 120: almost a block of 128
    (40, 3, 1, 3, 4, 2),
    (3, 1, 2, 1, 1, 1),
    (3, 1, 2, 1, 1, 2),
]


def errors(case: tuple[int, ...], kind: torch.dtype, *, bias: bool = False) -> list[float]:
    """‖ours - plain‖ / ‖plain‖ of the result and all gradients; the plain twin is float32."""
    each, runs, images, height, width, stride = case
    channels, generator = each * runs, torch.Generator().manual_seed(sum(case))

    def drawn(*size: int, of: torch.dtype = torch.float32) -> Tensor:
        """Random values that `kind` can hold, so that rounding them again changes nothing."""
        values = torch.randn(size, generator=generator).to(kind).to(of)
        return values.to(memory_format=torch.channels_last) if len(size) == 4 else values

    x = drawn(images, channels, height, width, of=kind).requires_grad_()
    weight = drawn(channels, 1, 3, 3).requires_grad_()
    inputs = [x, weight, *([drawn(channels).requires_grad_()] if bias else [])]
    got = depthwise_conv.convolve(x, weight, inputs[2] if bias else None, stride)
    twins = [t.detach().float().requires_grad_() for t in inputs]
    expected = functional.conv2d(*twins, stride=stride, padding=1, groups=channels)
    assert got.dtype == kind
    assert got.shape == expected.shape
    assert got.is_contiguous(memory_format=torch.channels_last)
    grown = drawn(*expected.shape, of=kind)
    found = (got, *torch.autograd.grad(got, inputs, grown))
    truth = (expected, *torch.autograd.grad(expected, twins, grown.float()))
    return [
        float((a.detach().float() - b.detach()).norm() / b.detach().norm().clamp(min=1e-6))
        for a, b in zip(found, truth, strict=True)
    ]


def transposed_error(case: tuple[int, ...]) -> float:
    """The gradient of the input as an operation of its own, and the gradients of that."""
    each, runs, images, height, width, stride = case
    channels, size = each * runs, [height, width]
    small = depthwise_conv.small_size(height, width, stride)
    x, weight = (torch.randn(s).requires_grad_() for s in ((images, channels, *small), (channels, 1, 3, 3)))
    got = depthwise_conv.depthwise_conv(x, weight, size, stride, True)
    more = [side - (stride * (less - 1) + 1) for side, less in zip(size, small, strict=True)]
    expected = functional.conv_transpose2d(
        x, weight, stride=stride, padding=1, output_padding=more, groups=channels
    )
    grown = torch.randn(expected.shape)
    found, truth = ((y, *torch.autograd.grad(y, (x, weight), grown)) for y in (got, expected))
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in zip(found, truth, strict=True))


@seed(0)
@settings(deadline=None, max_examples=10, database=None, phases=[Phase.generate])  # shrinking takes minutes
@given(
    size=st.tuples(*[st.integers(1, most) for most in (33, 2, 2, 5, 4, 2)]),
    setting=st.tuples(st.sampled_from([4, 8]), st.integers(1, 5), st.integers(1, 9)),
)
def agrees_at_any_size(size: tuple[int, ...], setting: tuple[int, int, int]) -> None:
    lanes, rows, programs = setting
    use(lanes, rows, programs)
    assert max(errors(size, torch.float32)) < 2e-6


def check_as_operations() -> None:
    """What torch.compile is told of them (shapes, strides, gradients) is what they do."""
    for stride, small in ((1, (4, 3)), (2, (2, 2))):
        x, dy = (torch.randn(2, 5, *s).to(memory_format=torch.channels_last) for s in ((4, 3), small))
        weight = torch.randn(5, 1, 3, 3).requires_grad_()
        forward = (x.requires_grad_(), weight, list(small), stride, False)
        torch.library.opcheck(depthwise_conv.depthwise_conv, forward)
        torch.library.opcheck(depthwise_conv.depthwise_conv_back, (x.detach(), dy, stride))


def use(lanes: int, rows: int, programs: int) -> None:
    """One setting for all kernels."""
    for table in depthwise_conv.SETTINGS.values():
        table.update(dict.fromkeys(table, Setting(lanes, rows, 4, 1, programs)))


if __name__ == "__main__":
    use(lanes=4, rows=3, programs=5)
    for case in CASES:
        print(case, "float32", max(errors(case, torch.float32, bias=True)))
    use(lanes=8, rows=16, programs=1)
    for case in CASES[:4]:
        print(case, "transposed", transposed_error(case))
        *images, weight = errors(case, torch.bfloat16)
        print(case, "bfloat16 weight", weight)
        print(case, "bfloat16 images", max(images))
    check_as_operations()
    agrees_at_any_size()

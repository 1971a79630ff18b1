"""Every kernel of conv_kernels.py against the plain convolution; with TRITON_INTERPRET=1 on any CPU."""

import torch
from torch.nn import functional

from evenprune import grouped_conv
from evenprune.grouped_conv import Shape

# channels in and out of one run, height, width, kernel, stride, padding, runs, images
CASES = [
    (16, 16, 5, 6, 3, 1, 1, 2, 2),
    (16, 32, 6, 4, 3, 2, 1, 2, 2),
    (3, 16, 5, 4, 3, 1, 1, 2, 2),
    (16, 32, 6, 6, 1, 2, 0, 2, 2),
    (20, 24, 7, 5, 3, 2, 1, 2, 1),
    (32, 20, 3, 5, 3, 1, 1, 1, 3),
]


def largest_error(case: tuple[int, ...], *, bias: bool) -> float:
    channels, out, height, width, kernel, stride, pad, runs, images = case
    generator = torch.Generator().manual_seed(sum(case))

    def drawn(*size: int) -> torch.Tensor:
        values = torch.randn(size, generator=generator)
        last = torch.channels_last if len(size) == 4 else torch.contiguous_format
        return values.to(memory_format=last).requires_grad_()

    x, weight = drawn(images, runs * channels, height, width), drawn(runs * out, channels, kernel, kernel)
    shift = drawn(runs * out) if bias else None
    inputs = [t for t in (x, weight, shift) if t is not None]
    expected = functional.conv2d(x, weight, shift, stride=stride, padding=pad, groups=runs)
    got = grouped_conv.convolve(x, weight, shift, Shape(kernel, stride, pad, runs))
    assert got.shape == expected.shape
    assert got.stride() == expected.contiguous(memory_format=torch.channels_last).stride()
    grown = torch.randn(expected.shape, generator=generator)
    pairs = zip(
        (expected, *torch.autograd.grad(expected, inputs, grown)),
        (got, *torch.autograd.grad(got, inputs, grown)),
        strict=True,
    )
    return max(float((a - b).detach().norm() / a.detach().norm()) for a, b in pairs)


if __name__ == "__main__":
    grouped_conv.GATHER = {size: (32, taps, 4, 1) for size, (_, taps, _, _) in grouped_conv.GATHER.items()}
    grouped_conv.GATHER_BACK = (16, 4, 1, 12)
    for number, case in enumerate(CASES):
        print("gather", case, largest_error(case, bias=number % 2 == 0))
    # The walking kernels: with few runs and with many, their own gradients of the weight and those of others.
    for pixels, rows, programs, few in ((16, 4, 4, 0), (32, 8, 1, 4), (16, 8, 0, 0), (16, 8, 0, 4)):
        grouped_conv.FEW_RUNS = few
        grouped_conv.WALK = {(size, few > 0): (pixels, rows, 4, 1) for size in (16, 32)}
        own = {key: (*values, programs) for key, values in grouped_conv.WALK.items()}
        grouped_conv.WALK_BACK = own if programs else {}
        for case in CASES:
            if case[4:7] == (3, 1, 1):
                print("walk", case, largest_error(case, bias=False))

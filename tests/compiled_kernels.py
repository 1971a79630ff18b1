"""Compile every kernel for an H200, without one: each as it is launched, and no register spilled.

Launches are caught and handed to Triton's compiler; what they would compute is not looked at.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor, nn
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from evenprune import conv_kernels, depthwise_conv, depthwise_kernels, fused_norm, grouped_conv, norm_kernels
from evenprune.grouped_conv import Shape

TARGET = GPUTarget("cuda", 90, 32)
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Device:
    """As much of a driver as the compiler asks for."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Caught:
    """Stands for a kernel; compiles what it is launched with."""

    def __init__(self, kernel: Any, made: dict[str, Any]) -> None:
        self.kernel, self.made = kernel, made

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*values: Any, **settings: Any) -> None:
            one = self.kernel.warmup(*values, grid=grid, **settings)
            told = [v for k, v in settings.items() if k.isupper()]
            self.made[f"{self.kernel.__name__} {' '.join(map(str, told))}"] = one

        return launch


def spilled(cubin: bytes) -> int:
    """Bytes of stack that a thread uses."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        told = subprocess.run(
            [TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return int(re.findall(r"STACK:(\d+)", told)[0])


def images(channels: int, side: int) -> Tensor:
    drawn = torch.randn(16, channels, side, side).bfloat16().contiguous(memory_format=torch.channels_last)
    return drawn.requires_grad_()


def work() -> Iterator[Tensor]:
    """Results that have launched their kernels on the way, and launch others on the way back."""
    for channels, out, side, shape in (
        (16, 16, 32, Shape(3, 1, 1, 5)),
        (16, 32, 32, Shape(3, 2, 1, 5)),
        (16, 32, 32, Shape(3, 1, 1, 5)),
        (32, 32, 16, Shape(3, 1, 1, 5)),
        (3, 64, 32, Shape(3, 1, 1, 5)),
        (3, 16, 32, Shape(3, 1, 1, 5)),
        (32, 64, 16, Shape(1, 2, 0, 5)),
        (64, 64, 8, Shape(3, 1, 1, 1)),
    ):
        weight = torch.randn(shape.runs * out, channels, shape.kernel, shape.kernel).requires_grad_()
        yield grouped_conv.convolve(images(shape.runs * channels, side), weight, None, shape)
    for stride in (1, 2):
        weight = torch.randn(480, 1, 3, 3).requires_grad_()
        yield depthwise_conv.convolve(images(480, 16), weight, None, stride)
    norm = nn.BatchNorm2d(400)
    for residual, act in ((True, "relu"), (False, "relu6"), (True, "none")):
        more = images(400, 8) if residual else None
        yield fused_norm.fused(norm, images(400, 8), more, act, twice=residual)  # type: ignore[misc,arg-type]


if __name__ == "__main__":
    driver.set_active(Device())
    made: dict[str, Any] = {}
    for module in (conv_kernels, depthwise_kernels, norm_kernels):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction) and not name.startswith("_"):
                setattr(module, name, Caught(value, made))
    for result in work():
        both = result if isinstance(result, tuple) else (result,)
        torch.autograd.backward(both, [torch.randn_like(one) for one in both])
    for name, one in made.items():
        print(spilled(one.asm["cubin"]), name)

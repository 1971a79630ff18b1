"""Random changes of images [samples, channels, height, width], as pure functions of random numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenprune.recipe import Augment
from evenprune.tally import InputProblems


@dataclass(frozen=True)
class Flip:
    """Mirror half of the images left to right."""

    draws: int = 1

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        mirrored = (uniform[:, 0] < 0.5).view(-1, 1, 1, 1)
        return torch.where(mirrored, inputs.flip(-1), inputs)


@dataclass(frozen=True)
class Crop:
    """Shift by up to `padding` pixels each way. What comes in is zero: the mean, if inputs are normalised."""

    padding: int = 4
    draws: int = 2

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        height, width = inputs.shape[-2:]
        padded = torch.nn.functional.pad(inputs, [self.padding] * 4)
        corner = (uniform * (2 * self.padding + 1)).long()  # [samples, 2]
        rows = corner[:, :1] + torch.arange(height, device=inputs.device)  # [samples, height]
        columns = corner[:, 1:] + torch.arange(width, device=inputs.device)  # [samples, width]
        sample = torch.arange(len(inputs), device=inputs.device).view(-1, 1, 1)
        return padded.permute(0, 2, 3, 1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Colour:
    """Brightness, contrast and saturation, each by a random factor of 1 − strength to 1 + strength.

    They are changes of pixels in 0 … 1, while the network's inputs are normalised, (pixel − mean) / std: give
    the `mean` and `std` of the data, and the inputs are turned into pixels, changed, kept within 0 … 1, and
    turned back. As they stand, 0 and 1, they fit inputs that are not normalised. One or three channels.
    """

    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    mean: tuple[float, ...] = (0.0,)  # one for all channels, or one each
    std: tuple[float, ...] = (1.0,)
    draws: int = 3

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}: it must be a number that is not negative, such as 0.2"
            for name, value in zip(("brightness", "contrast", "saturation"), self._strengths, strict=True)
            if not 0 <= value < math.inf
        ]
        if not (self.mean and self.std and all(value > 0 for value in self.std)):
            problems.append(f"mean is {self.mean} and std is {self.std}: give both, std positive")
        if problems:
            raise InputProblems(problems)

    @property
    def _strengths(self) -> tuple[float, float, float]:
        return self.brightness, self.contrast, self.saturation

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        if inputs.ndim != 4 or inputs.shape[1] not in (1, 3):
            raise ValueError(
                f"Colour changes images [samples, 1 or 3 channels, height, width], not {list(inputs.shape)}."
            )
        if not {len(self.mean), len(self.std)} <= {1, inputs.shape[1]}:
            raise ValueError(
                f"Colour has a mean of {len(self.mean)} and a std of {len(self.std)} values for images of "
                f"{inputs.shape[1]} channels."
            )
        if not any(self._strengths):
            return inputs
        mean, std = _per_channel(self.mean, inputs), _per_channel(self.std, inputs)
        pixels = inputs * std + mean
        for place, (strength, anchor) in enumerate(zip(self._strengths, ANCHORS, strict=True)):
            if strength:
                factor = _factor(uniform[:, place].to(pixels.dtype), strength)
                pixels = torch.lerp(anchor(pixels), pixels, factor).clamp(0, 1)
        return (pixels - mean) / std


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    """[channels, 1, 1], filled where the inputs are: nothing is copied from the host."""
    return torch.stack([like.new_full((), value) for value in values]).view(-1, 1, 1)


def _factor(uniform: Tensor, strength: float) -> Tensor:
    """A factor per sample [samples, 1, 1, 1] in 1 − strength … 1 + strength, never negative."""
    least = max(0.0, 1 - strength)
    return (least + uniform * (1 + strength - least)).view(-1, 1, 1, 1)


def _grey(pixels: Tensor) -> Tensor:
    """What the eye sees of red, green and blue: 0.299 R + 0.587 G + 0.114 B. [samples, 1, height, width]"""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


# What brightness, contrast and saturation move away from: black, the image's mean grey, its grey version.
ANCHORS: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.zeros_like,
    lambda pixels: _grey(pixels).mean((1, 2, 3), keepdim=True),
    _grey,
)


@dataclass(frozen=True)
class Both:
    """One change after the other."""

    first: Augment
    second: Augment

    @property
    def draws(self) -> int:
        return self.first.draws + self.second.draws

    def __call__(self, inputs: Tensor, uniform: Tensor) -> Tensor:
        changed = self.first(inputs, uniform[:, : self.first.draws])
        return self.second(changed, uniform[:, self.first.draws :])


# --- names ---

EXAMPLE = "flip, crop:4 or colour:0.2"
CHANNELS = (1, 3, 4)  # that images have: an axis of such a length, if it is the last one alone, is theirs
SPELLED = {"color": "colour"}
NEAR = 0.01  # that pixels may lie outside of 0 … 1: means and deviations are rounded


def parse(texts: Sequence[str]) -> tuple[Augment | None, list[str]]:
    """ "flip", "crop:4", "colour:0.2" as one change after the other; and what is wrong with the texts."""
    found, seen, problems = list[Augment](), list[str](), list[str]()
    for text in texts:
        name, _, value = (part.strip() for part in text.partition(":"))
        name = SPELLED.get(name, name)
        if name in seen:
            problems.append(f"augment names {name} twice; once is enough")
        seen.append(name)
        made = _named(name, value)
        if isinstance(made, str):
            problems.append(f"augment is {text!r}: {made}")
        else:
            found.append(made)
    return reduce(Both, found) if found else None, problems


def _named(name: str, value: str) -> Augment | str:
    """A change by its name and its one number; or why there is none."""
    if name == "flip":
        return Flip() if not value else "flip takes no number"
    if name == "crop":
        fits = not value or (value.isdecimal() and int(value) > 0)
        return Crop(int(value or 4)) if fits else "crop takes a whole number of pixels, such as crop:4"
    if name != "colour":
        return f"choose of {EXAMPLE}, several with commas"
    try:
        strength = float(value or 0.2)
    except ValueError:
        strength = math.nan
    fits = 0 < strength < math.inf
    return (
        Colour(strength, strength, strength)
        if fits
        else "colour takes a positive strength, such as colour:0.2"
    )


def unfit(
    augment: Augment | None,
    inputs: NDArray[Any] | Tensor,
    *,
    mean: Tensor | None = None,
    std: Tensor | None = None,
) -> list[str]:
    """Why samples [N, …] cannot be changed so. mean, std: what the network's inputs are normalised by."""
    if isinstance(augment, Both):
        both = (unfit(one, inputs, mean=mean, std=std) for one in (augment.first, augment.second))
        return [problem for problems in both for problem in problems]
    if not isinstance(augment, Flip | Crop | Colour):  # none, or one of the user's own
        return []
    name, shape = type(augment).__name__.lower(), list(inputs.shape[1:])
    if len(shape) != 3 or (shape[2] in CHANNELS and shape[0] not in CHANNELS):
        return [f"augment: {name} is for images [channels, height, width]; the inputs have shape {shape}"]
    if isinstance(augment, Crop) and augment.padding >= min(shape[1:]):
        size, most = f"{shape[2]}×{shape[1]}", min(shape[1:]) - 1
        return [f"augment: crop:{augment.padding} shifts images of {size} out of sight; give {most} at most"]
    return _uncoloured(augment, inputs, mean, std) if isinstance(augment, Colour) else []


def _uncoloured(
    colour: Colour, inputs: NDArray[Any] | Tensor, mean: Tensor | None, std: Tensor | None
) -> list[str]:
    """Colour undoes a normalisation; pixels must come out, in 0 … 1."""
    channels = inputs.shape[1]
    if channels not in (1, 3):
        return [f"augment: colour is for 1 or 3 channels; the inputs have {channels}"]
    if not any(colour._strengths) or not {len(colour.mean), len(colour.std)} <= {1, channels}:
        return []  # it changes nothing, or says itself what is wrong
    ends = _ends(inputs)  # as stored
    if mean is not None and std is not None:
        ends = (ends - mean.flatten().double()) / std.flatten().double()  # as the network sees them
    pixels = ends * torch.tensor(colour.std).double() + torch.tensor(colour.mean).double()
    if float(pixels.min()) >= -NEAR and float(pixels.max()) <= 1 + NEAR:
        return []
    if mean is not None and std is not None:
        own = [tuple(round(value, 4) for value in numbers.flatten().tolist()) for numbers in (mean, std)]
        return [
            "augment: colour changes pixels in 0 … 1, and the images are normalised before: give it the same "
            f"numbers, Colour(mean={own[0]}, std={own[1]})"
        ]
    return [
        f"augment: colour changes pixels in 0 … 1 or bytes; the inputs go from {float(ends.min()):.3g} to "
        f"{float(ends.max()):.3g}. Give bytes, with a model that normalises them itself; from Python, "
        "Colour(mean=…, std=…)"
    ]


def _ends(inputs: NDArray[Any] | Tensor) -> Tensor:
    """The least and the largest value of each channel [2, channels]; bytes are taken to use their range."""
    if inputs.dtype in (np.uint8, torch.uint8):
        return torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, inputs.shape[1])
    by_channel = torch.as_tensor(inputs).detach().cpu()
    return torch.stack([by_channel.amin((0, 2, 3)), by_channel.amax((0, 2, 3))]).double()

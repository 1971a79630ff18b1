"""A folder as people have it: jpgs of unequal sizes, a table of labels and attributes, a trained model."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from evenprune.data import folder
from evenprune.models import small_cnn

MODEL = """
from evenprune.models import small_cnn

def build_model():
    return small_cnn(num_classes=2, in_channels=3)
"""
ATTRIBUTES = {"race": ("Asian", "Black", "White"), "gender": ("female", "male")}


def photos(place: Path, count: int = 360) -> None:
    """photos/, photos.csv (path, smiling, race, gender, age), my_model.py, dense.safetensors in `place`."""
    rng = np.random.default_rng(0)
    lines = ["path,smiling,race,gender,age"]
    for i in range(count):
        smiling, race, gender = i % 2, i // 2 % 3, i // 6 % 2
        name = f"{race}/{i:04d}.jpg"
        (place / "photos" / str(race)).mkdir(parents=True, exist_ok=True)
        photo(rng, smiling=smiling, side=20 + 4 * (i % 3)).save(place / "photos" / name, quality=90)
        values = ("no", "yes")[smiling], ATTRIBUTES["race"][race], ATTRIBUTES["gender"][gender]
        age = 5 + 37 * i % 80 if i % 90 else ""  # of some it is not known
        lines.append(f"{','.join((name, *values))},{age}")
    (place / "photos.csv").write_text("\n".join(lines) + "\n")
    (place / "my_model.py").write_text(MODEL)
    save_file(trained(place).state_dict(), place / "dense.safetensors")


def photo(rng: np.random.Generator, *, smiling: int, side: int) -> Image.Image:
    """A bright bow in the lower or the upper half, on noise."""
    pixels = rng.integers(0, 90, (side, side, 3))
    across = np.arange(side)
    bow = (side * (0.65 if smiling else 0.3) + 0.2 * side * np.sin(np.pi * across / side)).astype(int)
    for thick in (0, 1):
        pixels[np.minimum(bow + thick, side - 1), across] = rng.integers(120, 256, (side, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def trained(place: Path) -> nn.Module:
    inputs, labels, _ = folder.load(
        place / "photos", place / "photos.csv", label="smiling", groups="race", image_size=24
    )["train"]
    torch.manual_seed(0)
    model = small_cnn(num_classes=2, in_channels=3).train()
    x, y = torch.from_numpy(inputs).float() / 255, torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()

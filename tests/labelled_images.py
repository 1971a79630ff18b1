"""Pictures of three classes, tables of them, and folders per class; and what an error says."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from evenprune.tally import InputProblems

LABELS = ("cat", "dog", "eel")
RACES = ("A", "B")


def picture(label: int, seed: int, side: int = 8) -> Image.Image:
    """A colour for the class, and some noise."""
    rng = np.random.default_rng(seed)
    pixels = np.full((side, side, 3), 40 + 80 * np.eye(3)[label % 3]) + rng.integers(0, 30, (side, side, 3))
    return Image.fromarray(pixels.astype(np.uint8))


def rows(count: int = 60, *, split: bool = True) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "path": [f"part{i % 2}/{i:03d}.png" for i in range(count)],
        "label": [LABELS[i % 3] for i in range(count)],
        "race": [RACES[i // 3 % 2] for i in range(count)],
        "age": [20 + i % 7 for i in range(count)],
    }
    if split:
        columns["split"] = [("train", "train", "Test", "val")[i // 3 % 4] for i in range(count)]
    return columns


def written(table: dict[str, list[Any]], path: Path) -> Path:
    frame = pl.DataFrame(table, strict=False)
    {
        ".csv": frame.write_csv,
        ".tsv": lambda file: frame.write_csv(file, separator="\t"),
        ".parquet": frame.write_parquet,
        ".jsonl": frame.write_ndjson,
    }[path.suffix](path)
    return path


def problems(call: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(InputProblems) as caught:
        call(*arguments, **options)
    return "\n".join(caught.value.problems)


def class_tree(place: Path, part: str = "", classes: tuple[str, ...] = LABELS, count: int = 3) -> None:
    for label, name in enumerate(classes):
        (place / part / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(label, len(part) * 100 + i).save(place / part / name / f"{i}.png")

"""Decoding a folder of JPEGs into the image cache, and opening the cache again.

The images are made for the purpose: smooth fields with noise, 200 × 200 pixels, quality 90, about as many
bytes as photographs of that size.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from evenprune.data import image_cache

COUNT, SIDE = 24_000, 200


def make(folder: Path) -> list[Path]:
    rng, paths = np.random.default_rng(0), []
    for number in range(COUNT):
        coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        smooth = np.asarray(
            Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC), dtype=np.int16
        )
        noisy = np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        paths.append(folder / f"{number:05d}.jpg")
        Image.fromarray(noisy).save(paths[-1], quality=90)
    return paths


def measured(paths: list[Path], size: int, cache: Path) -> dict[str, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    image_cache.decode(paths, size=size, cache=cache)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    again = time.perf_counter()
    image_cache.decode(paths, size=size, cache=cache)
    return {
        "size": size,
        "images": len(paths),
        "wall_s": wall,
        "cpu_s": cpu,
        "images_per_core_second": len(paths) / cpu,
        "from_cache_s": time.perf_counter() - again,
    }


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        paths = make(Path(folder))
        mean = sum(os.path.getsize(path) for path in paths) / len(paths)
        rows = [measured(paths, size, Path(folder) / "cache") for size in (SIDE, 128)]
    return {"bytes_per_image": mean, "rows": rows}


def table(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (
            f"{row['images']:,} JPEGs of {SIDE} px to {row['size']} px",
            f"{row['images_per_core_second']:.0f} images per core-second, {row['wall_s']:.1f} s wall; "
            f"from the cache {row['from_cache_s']:.2f} s",
            "24,000 well under a minute on 16 cores",
        )
        for row in figures["rows"]
    ]

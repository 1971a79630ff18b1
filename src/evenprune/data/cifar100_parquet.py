"""CIFAR-100 as Parquet tables with PNG images, the way Hugging Face keeps it."""

from pathlib import Path
from typing import Any

import polars as pl

from evenprune.data.cifar100_pictures import png_images
from evenprune.data.cifar100_places import Arrays, as_labels, gathering, parquet_files, shown
from evenprune.formats import refused
from evenprune.reading import listed
from evenprune.tally import InputProblems


def tables(folder: Path, split: str, image: Any) -> Arrays:
    files, problems, frames = parquet_files(folder, split), list[str](), list[pl.DataFrame]()
    if not files:
        problems.append(f"{shown(folder)} has no {split}*.parquet, the {split} images")
    for path in files:
        with gathering(problems), refused(shown(path)):
            frames.append(_columns(path))
    if problems:
        raise InputProblems(problems)
    frame = pl.concat(frames)
    images = png_images(frame["image"].to_list(), f"the {split} images in {shown(folder)}", image)
    return images, as_labels(frame["fine"].to_numpy()), as_labels(frame["coarse"].to_numpy())


def _columns(path: Path) -> pl.DataFrame:
    """Columns image (PNG bytes), fine, coarse of one file."""
    schema = pl.read_parquet_schema(path)
    name = next((name for name in ("img", "image") if name in schema), "img")
    problems = _schema_problems(path, schema, name)
    if problems:
        raise InputProblems(problems)
    wanted = [name, "fine_label", "coarse_label"]
    frame = pl.read_parquet(path, columns=wanted, glob=False, hive_partitioning=False)
    picture = frame[name] if schema[name] == pl.Binary else frame[name].struct.field("bytes")
    labels = [frame[f"{kind}_label"].cast(pl.Int64, strict=False).alias(kind) for kind in ("fine", "coarse")]
    frame = pl.DataFrame([picture.alias("image"), *labels])
    empty = {column: frame[column].null_count() for column in frame.columns}
    problems = [f"{shown(path)}: {count:,} rows without {column}" for column, count in empty.items() if count]
    if problems:
        raise InputProblems(problems)
    return frame


def _schema_problems(path: Path, schema: Any, name: str) -> list[str]:
    wanted = (name, "fine_label", "coarse_label")
    absent = [column for column in wanted if column not in schema]
    if absent:
        return [f"{shown(path)} has no column {column!r}; it has {listed(list(schema))}" for column in absent]
    kind = schema[name]
    inner = kind.to_schema().get("bytes") if isinstance(kind, pl.Struct) else kind
    odd = {column: "whole numbers" for column in wanted[1:] if not schema[column].is_integer()}
    odd |= {name: "PNG images as bytes, or {bytes, path}"} if inner != pl.Binary else {}
    return [f"{shown(path)}: {c!r} is {schema[c]}; expected are {what}" for c, what in odd.items()]

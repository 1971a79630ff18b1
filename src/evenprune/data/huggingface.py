"""Data sets of the package `datasets`, as objects or as folders that save_to_disk wrote, undecoded.

Folders are read with polars: neither the package is needed, nor anything of it run. Nothing is fetched.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from evenprune import formats
from evenprune.data import image_cache
from evenprune.data.folder_listing import USUAL_SPLIT
from evenprune.data.image_cache import Corrupt
from evenprune.data.image_pool import Progress
from evenprune.data.labelled import WORDS, Inputs, Listing
from evenprune.formats import Table, missing_columns
from evenprune.groups import text_of
from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

WHOLE, ONE = "dataset_dict.json", "state.json"  # in a folder of several splits, in that of one


@dataclass(frozen=True)
class Part:
    """One split: its columns as lists, and its images as encoded bytes or as arrays."""

    name: str
    columns: dict[str, list[Any]]
    classes: dict[str, list[str]]  # the names of the codes 0, 1, … of a column, where it has them
    encoded: Callable[[int], bytes] | None = None
    arrays: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def is_saved(folder: Path) -> bool:
    """Whether save_to_disk wrote this folder."""
    return any((folder / name).is_file() for name in (WHOLE, ONE))


@dataclass(frozen=True)
class Wanted:
    """The columns that count: all must be there, but for a `split` of the usual name."""

    image: str
    label: str
    groups: Sequence[str]
    split: str | None

    def of(self, where: str, there: Sequence[str]) -> list[str]:
        """Those of a data set that has these columns; or what is missing."""
        needed = [self.image, self.label, *self.groups]
        if self.split is not None and (self.split != USUAL_SPLIT or USUAL_SPLIT in there):
            needed.append(self.split)
        problems = missing_columns(Table(where, tuple(there), pl.LazyFrame()), list(dict.fromkeys(needed)))
        if problems:
            raise InputProblems(problems)
        return list(dict.fromkeys(needed))


def parts(
    data: Any, *, image: str, label: str, groups: Sequence[str], split: str | None = None
) -> list[Part]:
    """The splits of a data set; one without a name if it has none. split: column that tells them, if any."""
    wanted = Wanted(image, label, groups, split)
    if isinstance(data, str | Path):
        return _saved(Path(data), wanted)
    if not isinstance(data, Mapping):
        return [_of_object("", data, wanted)]
    return _together([partial(_of_object, str(name), part, wanted) for name, part in data.items()])


def _together(makers: Sequence[Callable[[], Part]]) -> list[Part]:
    found, problems = [], list[str]()
    for make in makers:
        try:
            found.append(make())
        except InputProblems as error:
            problems += error.problems
    if problems:
        raise InputProblems(problems)
    return found


def listing(found: Sequence[Part], *, label: str, groups: Sequence[str], split: str | None = None) -> Listing:
    """What is known of all splits in a row; label 0, 1, … are those of the first split, by their names.

    split: the column that tells the splits of a data set of one split; of another name than the usual one,
    always.
    """

    def joined(name: str) -> list[Any]:
        return [value for part in found for value in _named(part, name)]

    whole = _whole(found)
    names = [f"row {row}" if whole else f"{part.name}[{row}]" for part in found for row in range(len(part))]
    own = [part.name for part in found for _ in range(len(part))]
    splits, notes = None if whole else own, list[str]()
    if split is not None and all(split in part.columns for part in found):
        told = joined(split)
        if len(found) == 1 or split != USUAL_SPLIT:
            splits = told
        else:
            notes = _contradicted(own, told, names, split)
    return Listing(
        where="the data set",
        names=names,
        labels=_labels(found, label),
        columns={name: joined(name) for name in groups},
        splits=splits,
        classes=found[0].classes.get(label),
        notes=notes,
    )


def _whole(found: Sequence[Part]) -> bool:
    """Whether there is one split only, without a name or called train: it holds all samples."""
    return len(found) == 1 and WORDS.get(found[0].name.strip().lower() or "train") == "train"


def _contradicted(own: Sequence[str], told: Sequence[Any], names: Sequence[str], column: str) -> list[str]:
    """A note on a column of splits that is not used, as the data set is in splits already."""

    def word(value: Any) -> str:
        text = (text_of(value) or "").strip().lower()
        return WORDS.get(text, text)

    other = [i for i, (mine, said) in enumerate(zip(own, told, strict=True)) if word(mine) != word(said)]
    if not other:
        return []
    return [
        f"The splits are those of the data set; its column {quoted(column)} is not used, and says otherwise "
        f"of {len(other):,} of {len(own):,} samples, such as {names[other[0]]} ({quoted(told[other[0]])})."
    ]


def _labels(found: Sequence[Part], label: str) -> list[Any]:
    """The labels of all splits as codes of the first one; refused where the splits name other classes."""
    first = found[0].classes.get(label)
    strangers = [part for part in found if set(part.classes.get(label, ())) != set(first or ())]
    if strangers:
        told = [
            f"split {quoted(part.name)} has {listed(part.classes.get(label, ())) or 'none'}"
            for part in (found[0], *strangers)
        ]
        raise InputProblems(
            [
                f"the names of the classes in column {quoted(label)} differ: {'; '.join(told)}. "
                "Cast them to one set of names"
            ]
        )
    if first is None:
        return [value for part in found for value in part.columns[label]]
    place = {name: code for code, name in enumerate(first)}
    return [
        place[part.classes[label][code]] if _is_code(code, len(first)) else code
        for part in found
        for code in part.columns[label]
    ]


def _is_code(value: Any, count: int) -> bool:
    return isinstance(value, int) and 0 <= value < count


def _named(part: Part, column: str) -> list[Any]:
    """Codes as the names that the data set has for them; −1 stands for a missing one."""
    names, values = part.classes.get(column), part.columns[column]
    if names is None:
        return values
    return [None if code is None or not 0 <= code < len(names) else names[code] for code in values]


def images(
    found: Sequence[Part],
    places: Sequence[int],
    *,
    size: int | None,
    cache: Path | None,
    corrupt: Corrupt,
    progress: Progress | None,
    source: str = "",
) -> Inputs:
    """The images at these places of all splits in a row. source: where they come from, for people."""
    problems = image_cache.size_problems(size)
    if problems:
        raise InputProblems(problems)
    rows = [(part, row) for part in found for row in range(len(part))]
    if all(part.arrays is not None for part in found):
        return _stacked(found, places, size)

    def read(place: int) -> bytes:
        part, row = rows[places[place]]
        if part.encoded is None:
            raise OSError("it is an array, others are image files")
        return part.encoded(row)

    names = [f"{rows[place][0].name or 'row'}[{rows[place][1]}]" for place in places]
    decoded = image_cache.decode_encoded(
        read, names, keys=names, size=size, cache=cache, corrupt=corrupt, progress=progress, source=source
    )
    return Inputs(decoded.images, decoded.kept, decoded.skipped, decoded.twins)


def _stacked(found: Sequence[Part], places: Sequence[int], size: int | None) -> Inputs:
    arrays = [channels_first(part.arrays) for part in found if part.arrays is not None]
    shapes = {array.shape[1:] for array in arrays} | ({(3, size, size)} if size else set())
    if len(shapes) > 1:
        shown = " and ".join(str(list(shape)) for shape in sorted(shapes))
        raise InputProblems([f"the images are arrays of shape {shown}: arrays are taken as they are"])
    return Inputs(np.concatenate(arrays)[list(places)], np.arange(len(places)))


def channels_first(arrays: NDArray[Any]) -> NDArray[Any]:
    """Images [N, h, w, 3], and of bytes also [N, h, w] and [N, h, w, 1], as [N, 3, h, w]; others stay."""
    if arrays.ndim == 4 and _channels_last(arrays.shape, 4):
        raise InputProblems(
            [
                f"the images are arrays of shape {list(arrays.shape)}, with four channels (alpha?): give "
                "three, or [N, 4, height, width] if the model takes four"
            ]
        )
    if arrays.dtype != np.uint8 or arrays.ndim not in (3, 4):
        last = arrays.ndim == 4 and _channels_last(arrays.shape, 3)
        return np.ascontiguousarray(arrays.transpose(0, 3, 1, 2)) if last else arrays
    if arrays.ndim == 4 and arrays.shape[1] in (1, 3) and arrays.shape[3] not in (1, 3):
        return arrays
    grey = arrays.ndim == 3 or arrays.shape[3] == 1
    seen = arrays.reshape(*arrays.shape[:3], -1).repeat(3, axis=3) if grey else arrays
    return np.ascontiguousarray(seen.transpose(0, 3, 1, 2)) if seen.shape[3] == 3 else arrays


def bytes_first(arrays: NDArray[Any]) -> NDArray[Any]:
    """Bytes [N, h, w, 1, 3 or 4] as [N, channels, h, w]; all else stays, as one's own model may take it."""
    last = arrays.dtype == np.uint8 and arrays.ndim == 4 and _channels_last(arrays.shape, 1, 3, 4)
    return np.ascontiguousarray(arrays.transpose(0, 3, 1, 2)) if last else arrays


def _channels_last(shape: Sequence[int], *channels: int) -> bool:
    """Whether the last axis is that of the channels: neither [N, 3, h, 4] nor the maps [N, 16, 4, 4]."""
    return shape[3] in channels and shape[2] != shape[3] and shape[1] not in (1, 3, 4)


# --- objects ---


def _of_object(name: str, data: Any, wanted: Wanted) -> Part:
    where = f"split {quoted(name)}" if name else "the data set"
    if not (hasattr(data, "with_format") and hasattr(data, "features")):
        raise InputProblems([f"{where} is a {type(data).__name__}; give a Dataset or a DatasetDict"])
    if not hasattr(data, "__len__"):
        raise InputProblems([f"{where} is streamed; load it without streaming=True"])
    needed, image = wanted.of(where, list(data.column_names)), wanted.image
    table = data.select_columns(needed).with_format("arrow")[:]
    classes = {c: list(data.features[c].names) for c in needed if hasattr(data.features[c], "names")}
    columns = {c: table[c].to_pylist() for c in needed if c != image}
    pictures = table[image]
    if type(data.features[image]).__name__ == "Image":
        return Part(name, columns, classes, encoded=lambda row: _bytes(pictures[row].as_py()))
    arrays = data.select_columns([image]).with_format("numpy")[:][image]
    return Part(name, columns, classes, arrays=_numbers(arrays, f"column {quoted(image)} of {where}"))


def _bytes(value: Any) -> bytes:
    """An image as it is stored: its bytes, or the path of a local file."""
    if isinstance(value, bytes):
        return value
    if value is None or (value.get("bytes") is None and not value.get("path")):
        raise OSError("no image")
    held = value.get("bytes")
    return bytes(held) if held is not None else Path(value["path"]).read_bytes()


# --- folders ---


def _saved(folder: Path, wanted: Wanted) -> list[Part]:
    where = quoted(str(folder), 300)
    if not is_saved(folder):
        raise InputProblems([f"{where} is no folder that save_to_disk of the package datasets wrote"])
    if not (folder / WHOLE).is_file():
        return [_saved_part("", folder, wanted)]
    names = [str(name) for name in _said(folder / WHOLE, "splits", list)]
    return _together([partial(_saved_part, name, folder / Path(name).name, wanted) for name in names])


def _saved_part(name: str, folder: Path, wanted: Wanted) -> Part:
    where = quoted(str(folder), 300)
    features = _said(folder / "dataset_info.json", "features", dict)
    files = [folder / Path(str(entry["filename"])).name for entry in _said(folder / ONE, "_data_files", list)]
    needed, image = wanted.of(where, list(features)), wanted.image
    with formats.refused(where):
        frame = pl.concat([pl.read_ipc_stream(file, columns=needed) for file in files])
    classes = {c: list(features[c]["names"]) for c in needed if features[c].get("_type") == "ClassLabel"}
    columns = {c: frame[c].to_list() for c in needed if c != image}
    if features[image].get("_type") == "Image":
        pictures = frame[image]
        return Part(name, columns, classes, encoded=lambda row: _bytes(pictures[row]))
    arrays = _numbers(frame[image].to_list(), f"column {quoted(image)} of {where}")
    return Part(name, columns, classes, arrays=arrays)


def _said(path: Path, key: str, kind: type) -> Any:
    """What a JSON file says under a key."""
    where = quoted(str(path), 300)
    with formats.refused(where):
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict) or not isinstance(document.get(key), kind):
            raise InputProblems([f"{where} does not say {quoted(key)}: it is none of the package datasets"])
        return document[key]


def _numbers(rows: Any, where: str) -> NDArray[Any]:
    """Arrays or nested lists of one shape as bytes where they are such, else as float32."""
    try:
        array = np.asarray(rows)
    except ValueError:  # of unequal shapes
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise InputProblems([f"{where} holds neither images nor arrays of numbers of one shape"])
    byte = array.dtype.kind in "iu" and array.size and array.min() >= 0 and array.max() <= 255
    return array.astype(np.uint8 if byte else np.float32)

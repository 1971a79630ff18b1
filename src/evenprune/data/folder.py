"""Images of one's own: a folder with a table, a folder per class, a Hugging Face data set, or arrays.

All give the splits that `prune(model, **loaded, …)` takes: bytes [N, 3, height, width], class ids, and group
columns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.data import folder_listing, huggingface, image_cache
from evenprune.data.folder_listing import SHOWN, USUAL_SPLIT, Names
from evenprune.data.image_cache import Corrupt, Decoded
from evenprune.data.image_pool import Progress
from evenprune.data.labelled import Inputs, Listing, Loaded, Wishes, assemble
from evenprune.group_rules import Bins
from evenprune.reading import quoted
from evenprune.tally import InputProblems

__all__ = ["Loaded", "from_arrays", "from_huggingface", "load"]


def load(
    folder: str | Path,
    table: str | Path | None = None,
    *,
    label: str = "label",
    groups: str | Sequence[str],
    path: str = "path",
    split: str | None = USUAL_SPLIT,
    bins: Mapping[str, Bins] | None = None,
    merge_below: int | None = None,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    image_size: int | None = None,
    cache: str | Path | None = None,
    corrupt: Corrupt = "refuse",
    progress: Progress | None = None,
) -> Loaded:
    """The images of a folder that a table (CSV, TSV, Parquet, JSON lines …) lists, in splits by name.

    table: as a path, or the name of a file in the folder. Without one: a folder per class, or train/CLASS and
        test/CLASS; the class is then the only group column there is, by the name of `label`.
    label, groups, path, split: the columns. Paths are relative to the folder.
    split: train, test or validation for each image. A table without the column "split", or None: a split of
        each class is drawn, `test_share` of it to test, by `seed`; the same at every call.
    bins: columns of groups whose numbers are put into ranges, such as {"age": [18, 30, 45], "income": 4}: by
        where the ranges begin, or by a number of ranges with about as many training samples in each.
    merge_below: groups (intersections, if there are several columns) with fewer training samples become one,
        "other"; there is then one column of groups. The audits tell what was merged.
    classes: the labels in the order of the model's outputs. Else whole numbers stay as they are, and texts
        are numbered in sorted order; the names are in `classes` of the result.
    image_size: all images are squeezed to this many pixels square. Without it they must be of one size.
    cache: folder that keeps the decoded images; see image_cache.
    corrupt: "refuse" images that cannot be read, in one error; or "skip" them (`skipped` of the result).
    """
    place, chosen = Path(folder), [groups] if isinstance(groups, str) else list(groups)
    names = Names(path, label, chosen, split)
    wishes = Wishes(
        groups=chosen, classes=classes, test_share=test_share, seed=seed, bins=bins, merge_below=merge_below
    )
    if table is None:
        found = folder_listing.by_folders(place, names)
    else:
        found = folder_listing.by_table(place, Path(table), names)

    files, order = list[Decoded[Path]](), list[str]()

    def read(places: list[int]) -> Inputs:
        decoded = image_cache.decode(
            [found.paths[i] for i in places],
            size=image_size,
            cache=None if cache is None else Path(cache),
            corrupt=corrupt,
            progress=progress,
        )
        files.append(decoded)
        order.extend(found.listing.names[i] for i in places)
        return decoded.images, decoded.kept, [(str(name), reason) for name, reason in decoded.skipped]

    loaded = assemble(found.listing, read, wishes, found.problems)
    loaded.notes = _leaked(loaded, files[0], order)
    return loaded


def _leaked(loaded: Loaded, decoded: Decoded[Path], names: Sequence[str]) -> tuple[str, ...]:
    """A note on files that are the same, byte by byte, in several splits. names: in the order of reading."""
    splits = [
        split for split, (_, labels, _) in loaded.items() for _ in labels
    ]  # of the images that were read
    split_of = dict(zip(decoded.kept.tolist(), splits, strict=True))
    shared = [same for same in decoded.twins if len({split_of[i] for i in same if i in split_of}) > 1]
    if not shared:
        return ()
    told = ", ".join(" = ".join(quoted(names[i]) for i in same[:SHOWN]) for same in shared[:SHOWN])
    more = f" … and {len(shared) - SHOWN:,} more" if len(shared) > SHOWN else ""
    many = f"{len(shared):,} images are" if len(shared) > 1 else "one image is"
    return (f"{many} in several splits, as files that are the same byte by byte: {told}{more}.",)


def from_huggingface(
    data: Any,
    *,
    image: str = "image",
    label: str = "label",
    groups: str | Sequence[str],
    bins: Mapping[str, Bins] | None = None,
    merge_below: int | None = None,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    image_size: int | None = None,
    cache: str | Path | None = None,
    corrupt: Corrupt = "refuse",
    progress: Progress | None = None,
) -> Loaded:
    """A Dataset or DatasetDict of the package `datasets`, or a folder that save_to_disk wrote.

    Such a folder is read without that package. Splits are called train, test and validation (or val, dev …);
    of a single Dataset a split is drawn, as by load(), which also explains the other arguments.
    """
    chosen = [groups] if isinstance(groups, str) else list(groups)
    parts = huggingface.parts(data, image=image, label=label, groups=chosen)

    def read(places: list[int]) -> Inputs:
        return huggingface.images(
            parts,
            places,
            size=image_size,
            cache=None if cache is None else Path(cache),
            corrupt=corrupt,
            progress=progress,
            source=str(Path(data).absolute()) if isinstance(data, str | Path) else "",
        )

    wishes = Wishes(
        groups=chosen, classes=classes, test_share=test_share, seed=seed, bins=bins, merge_below=merge_below
    )
    return assemble(huggingface.listing(parts, label=label, groups=chosen), read, wishes)


def from_arrays(
    images: Any,
    labels: Any,
    groups: Mapping[str, Any],
    *,
    split: Any = None,
    bins: Mapping[str, Bins] | None = None,
    merge_below: int | None = None,
    classes: Sequence[str] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> Loaded:
    """Arrays [N, height, width, 3], [N, 3, height, width] or [N, height, width] of bytes; or any numbers.

    split: train, test or validation for each sample; without it one is drawn, by the places of the samples.
    groups: columns by name; in whole numbers −1 stands for a missing value, as prune() takes it.
    """
    inputs = huggingface.channels_first(np.asarray(images))
    columns: dict[str, Sequence[Any]] = {n: _coded(np.asarray(values)) for n, values in groups.items()}
    given = {"labels": np.asarray(labels).tolist()} | columns
    given |= {} if split is None else {"split": np.asarray(split).tolist()}
    unequal = {name: len(values) for name, values in given.items() if len(values) != len(inputs)}
    if unequal:
        each = ", ".join(f"{name} {count:,}" for name, count in unequal.items())
        raise InputProblems([f"unequal lengths: images {len(inputs):,}, {each}"])
    listing = Listing(
        where="the arrays",
        names=[f"sample {i}" for i in range(len(inputs))],
        labels=given["labels"],
        columns=columns,
        splits=given.get("split"),
    )
    wishes = Wishes(
        groups=list(columns),
        classes=classes,
        test_share=test_share,
        seed=seed,
        bins=bins,
        merge_below=merge_below,
    )
    return assemble(listing, lambda places: (inputs[places], np.arange(len(places)), []), wishes)


def _coded(values: NDArray[Any]) -> list[Any]:
    found: list[Any] = values.tolist()
    return [None if value == -1 else value for value in found] if values.dtype.kind == "i" else found

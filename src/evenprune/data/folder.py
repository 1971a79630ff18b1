"""Images of one's own: a folder with a table, a folder per class, a Hugging Face data set, or arrays.

All give the splits that `prune(model, **loaded, …)` takes: bytes [N, 3, height, width], class ids, and group
columns.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from evenprune.data import folder_listing, huggingface, image_cache, labelled_arrays
from evenprune.data.folder_listing import USUAL_SPLIT, Names
from evenprune.data.image_cache import Corrupt
from evenprune.data.image_pool import Progress
from evenprune.data.labelled import Inputs, Loaded, Wanted, Wishes, assemble
from evenprune.groups import as_columns

__all__ = ["Loaded", "from_arrays", "from_huggingface", "load"]


def load(
    folder: str | Path,
    table: str | Path | None = None,
    *,
    label: str = "label",
    groups: str | Sequence[str],
    path: str = "path",
    split: str | None = USUAL_SPLIT,
    image_size: int | None = None,
    cache: str | Path | None = None,
    corrupt: Corrupt = "refuse",
    progress: Progress | None = None,
    **wanted: Unpack[Wanted],
) -> Loaded:
    """The images of a folder that a table (CSV, TSV, Parquet, JSON lines …) lists, in splits by name.

    table: as a path, or the name of a file in the folder. Without one: a folder per class, or train/CLASS and
        test/CLASS; the class is then the only group column there is, by the name of `label`.
    label, groups, path, split: the columns. Paths are relative to the folder.
    split: train, test (or audit) or validation (or heldout) for each image. A table without the column
        "split", or None: splits of each class are drawn, `test_share` of it to test, by `seed`; the same at
        every call, in whatever order the images are listed.
    heldout_share: share of each class that is drawn as the held-out split, "validation", beside the test
        samples, which stay the same. Where the data tells training and test samples apart but holds none
        out, it is drawn of the training samples, which a note tells: a dense model that was trained on them
        has seen the held-out ones.
    bins: columns of groups whose numbers are put into ranges, such as {"age": [18, 30, 45], "income": 4}: by
        where the ranges begin, or by a number of ranges with about as many training samples in each. Texts
        are read as on the command line: "18,30,45", "quantiles:4".
    merge_below: groups (intersections, if there are several columns) with fewer training samples become one,
        "other"; there is then one column of groups. The audits tell what was merged.
    classes: the labels in the order of the model's outputs. Else whole numbers stay as they are, and texts
        are numbered in sorted order; the names are in `classes` of the result.
    image_size: all images are squeezed to this many pixels square. Without it they must be of one size.
    cache: folder that keeps the decoded images; see image_cache.
    corrupt: "refuse" images that cannot be read, in one error; or "skip" them (`skipped` of the result).

    Images that were skipped, and files that are the same in several splits, are told in the audits.
    """
    place, chosen = Path(folder), [groups] if isinstance(groups, str) else list(groups)
    names = Names(path, label, chosen, split)
    wishes = Wishes(groups=chosen, **wanted)
    if table is None:
        found = folder_listing.by_folders(place, names)
    else:
        found = folder_listing.by_table(place, Path(table), names)

    def read(places: list[int]) -> Inputs:
        decoded = image_cache.decode(
            [found.paths[i] for i in places],
            size=image_size,
            cache=None if cache is None else Path(cache),
            corrupt=corrupt,
            progress=progress,
        )
        skipped = [(os.path.relpath(path, place), reason) for path, reason in decoded.skipped]
        return Inputs(decoded.images, decoded.kept, skipped, decoded.twins)

    return assemble(found.listing, read, wishes, found.problems)


def from_huggingface(
    data: Any,
    *,
    image: str = "image",
    label: str = "label",
    groups: str | Sequence[str],
    split: str | None = USUAL_SPLIT,
    image_size: int | None = None,
    cache: str | Path | None = None,
    corrupt: Corrupt = "refuse",
    progress: Progress | None = None,
    **wanted: Unpack[Wanted],
) -> Loaded:
    """A Dataset or DatasetDict of the package `datasets`, or a folder that save_to_disk wrote.

    Such a folder is read without that package. Splits are called train, test and validation (or val, dev …).
    Of a single one (train) the column `split` tells them, if there is one; else one is drawn, as by load(),
    which also explains the other arguments. A column of another name than "split" always counts.
    """
    chosen = [groups] if isinstance(groups, str) else list(groups)
    parts = huggingface.parts(data, image=image, label=label, groups=chosen, split=split)

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

    wishes = Wishes(groups=chosen, **wanted)
    return assemble(huggingface.listing(parts, label=label, groups=chosen, split=split), read, wishes)


def from_arrays(
    images: Any,
    labels: Any,
    groups: Any,
    *,
    split: Any = None,
    **wanted: Unpack[Wanted],
) -> Loaded:
    """Arrays [N, height, width, 3], [N, 3, height, width] or [N, height, width] of bytes; or any numbers.

    Bytes are divided by 255 when they are used; all other numbers are taken as they are, as float32. What
    need not be converted or put in order shares memory with the arrays.
    labels: one class per sample, whole numbers or texts; one-hot rows are refused.
    groups: columns by name (a mapping or a data frame), or one column; in whole numbers from −1 on, −1
        stands for a missing value, as prune() takes it. Notes of groups.binned and groups.merge_below stay.
    split: train, test or validation for each sample; without it one is drawn, by the places of the samples.
    heldout_share: share of each class that is held out beside the test samples; see load().
    """
    columns = as_columns(groups)
    wishes = Wishes(groups=list(columns), **wanted)
    return labelled_arrays.loaded(
        images, labels, columns, split, wishes=wishes, arranged=huggingface.channels_first
    )

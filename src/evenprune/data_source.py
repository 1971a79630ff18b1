"""The data of the command line: what lies at the path decides how it is read, and which flags count."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenprune.data.arrays import Samples
from evenprune.data.image_store import FOLDER
from evenprune.data.labelled import Wishes, left_out
from evenprune.experiment import BUILT_IN, Experiment
from evenprune.formats import SUFFIXES
from evenprune.group_rules import measured, parse_bins
from evenprune.reading import quoted
from evenprune.tally import InputProblems

KINDS = {
    "npz": "an NPZ file",
    "images": "a folder of images",
    "saved": "a folder of the package datasets",
    "table": "a table",
}
FLAGS = {  # those that not every kind of data has
    "test": ("npz",),
    "table": ("images",),
    "path": ("images", "saved"),
    "split": ("images", "saved", "table"),
    "label": ("images", "saved", "table"),
    "classes": ("npz", "images", "saved", "table"),
    "numeric": ("table",),
    "categorical": ("table",),
    "ignore": ("table",),
    "test_share": ("npz", "images", "saved", "table"),
    "heldout_share": ("npz", "images", "saved", "table"),
    "image_size": ("images", "saved"),
    "corrupt": ("images", "saved"),
    "augment": ("npz", "images", "saved"),
}


def kind_of(path: str) -> str:
    """What the data at a path is, by what lies there and by its name; an NPZ if neither tells."""
    place = Path(path)
    if place.is_dir():
        from evenprune.data import huggingface

        return "saved" if huggingface.is_saved(place) else "images"
    suffixes = [suffix.lower() for suffix in place.suffixes[-2:] if suffix.lower() in SUFFIXES]
    return "table" if suffixes and SUFFIXES[suffixes[-1]] != "npz" else "npz"


def load(wanted: Experiment) -> Mapping[str, Samples]:
    """The splits by name; notes on what was left out or numbered here are warnings."""
    if not Path(wanted.data).exists():
        own = f"; the built-in experiment is: evenprune run {wanted.data}" if wanted.data in BUILT_IN else ""
        raise InputProblems([f"data {quoted(wanted.data, 300)}: No such file or folder{own}"])
    kind = kind_of(wanted.data)
    problems = _out_of_place(wanted, kind)
    try:
        splits = READERS[kind](wanted)
    except InputProblems as error:
        raise InputProblems(problems + error.problems) from None
    if problems:
        raise InputProblems(problems)
    for note in [*_notes(splits), *measured(splits["train"][2] if "train" in splits else {})]:
        warnings.warn(note, stacklevel=2)
    return splits


def shape_and_classes(splits: Mapping[str, Samples]) -> tuple[tuple[int, ...], int]:
    """What a model is given and has to tell apart: the shape of one input, and the number of classes."""
    inputs = next(iter(splits.values()))[0]
    highest = max(int(labels.max(initial=0)) for _, labels, _ in splits.values())
    return tuple(inputs.shape[1:]), max(highest + 1, len(getattr(splits, "classes", ())))


def _out_of_place(wanted: Experiment, kind: str) -> list[str]:
    given = {flag: value for flag, value in wanted.settings.items() if (flag, value) != ("split", "")}
    return [
        f"--{flag.replace('_', '-')} is for {' or '.join(KINDS[one] for one in kinds)}; "
        f"{quoted(wanted.data, 300)} is {KINDS[kind]}"
        for flag, kinds in FLAGS.items()
        if flag in given and kind not in kinds
    ]


def _notes(splits: Any) -> list[str]:
    classes, skipped = getattr(splits, "classes", ()), getattr(splits, "skipped", [])
    described = getattr(getattr(splits, "description", None), "notes", ())
    notes = [*getattr(splits, "notes", ()), *described]
    if getattr(splits, "counted", False):
        order = ", ".join(f"{number} {name}" for number, name in enumerate(classes[:10]))
        more = f" … and {len(classes) - 10:,} more" if len(classes) > 10 else ""
        notes.append(
            f"the labels were numbered in sorted order: {order}{more}. The model's outputs must be in this "
            "order; if they are not, name the classes in theirs: --classes a,b,c"
        )
    return notes + ([left_out(skipped)] if skipped else [])


def _npz(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import arrays, huggingface, labelled_arrays

    found = arrays.load(wanted.data, groups=wanted.groups, test=wanted.test or None)
    where = quoted(wanted.data, 300)
    wishes = Wishes(groups=wanted.groups, classes=wanted.classes or None, **_shares(wanted), **_rules(wanted))
    words = labelled_arrays.Words(where=where, inputs="x", labels="y", group="{}", before=f"{where}: ")
    return labelled_arrays.loaded(
        found.inputs,
        found.labels,
        found.columns,
        found.split if wanted.split else None,
        wishes=wishes,
        words=words,
        arranged=huggingface.bytes_first,
    )


def _shares(wanted: Experiment) -> dict[str, Any]:
    return {"test_share": wanted.test_share, "heldout_share": wanted.heldout_share}


def _rules(wanted: Experiment) -> dict[str, Any]:
    return {"bins": parse_bins(wanted.bin)[0], "merge_below": wanted.merge_below}


def _images(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import folder

    return folder.load(
        wanted.data,
        wanted.table or None,
        path=wanted.path or "path",
        **_of_images(wanted),
    )


def _saved(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import folder

    return folder.from_huggingface(wanted.data, image=wanted.path or "image", **_of_images(wanted))


def _of_images(wanted: Experiment) -> dict[str, Any]:
    return {
        "label": wanted.label,
        "groups": wanted.groups,
        "split": wanted.split or None,
        **_rules(wanted),
        "classes": wanted.classes or None,
        **_shares(wanted),
        "image_size": wanted.image_size,
        "cache": Path(wanted.cache) if wanted.cache else FOLDER,
        "corrupt": wanted.corrupt,
    }


def _table(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import tabular

    return tabular.load(
        wanted.data,
        label=wanted.label,
        groups=wanted.groups,
        **_rules(wanted),
        split=wanted.split or None,
        **_shares(wanted),
        numeric=wanted.numeric or None,
        categorical=wanted.categorical or None,
        ignore=wanted.ignore,
        classes=wanted.classes or None,
    )


READERS: dict[str, Callable[[Experiment], Mapping[str, Samples]]] = {
    "npz": _npz,
    "images": _images,
    "saved": _saved,
    "table": _table,
}

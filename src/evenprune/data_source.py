"""The data of the command line: what lies at the path decides how it is read, and which flags count."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenprune.data.arrays import Samples
from evenprune.experiment import Experiment
from evenprune.formats import SUFFIXES
from evenprune.reading import listed, quoted
from evenprune.tally import InputProblems

CACHE = Path("runs") / "image-cache"
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
    "split": ("images", "table"),
    "label": ("images", "saved", "table"),
    "classes": ("images", "saved"),
    "test_share": ("images", "saved", "table"),
    "image_size": ("images", "saved"),
    "corrupt": ("images", "saved"),
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
        raise InputProblems([f"data {quoted(wanted.data, 300)}: No such file or folder"])
    kind = kind_of(wanted.data)
    problems = _out_of_place(wanted, kind)
    try:
        splits = READERS[kind](wanted)
    except InputProblems as error:
        raise InputProblems(problems + error.problems) from None
    if problems:
        raise InputProblems(problems)
    for note in _notes(splits, kind):
        warnings.warn(note, stacklevel=2)
    return splits


def shape_and_classes(splits: Mapping[str, Samples]) -> tuple[tuple[int, ...], int]:
    """What a model is given and has to tell apart: the shape of one input, and the number of classes."""
    inputs = next(iter(splits.values()))[0]
    highest = max(int(labels.max(initial=0)) for _, labels, _ in splits.values())
    return tuple(inputs.shape[1:]), max(highest + 1, len(getattr(splits, "classes", ())))


def _out_of_place(wanted: Experiment, kind: str) -> list[str]:
    given = wanted.settings
    return [
        f"--{flag.replace('_', '-')} is for {' or '.join(KINDS[one] for one in kinds)}; "
        f"{quoted(wanted.data, 300)} is {KINDS[kind]}"
        for flag, kinds in FLAGS.items()
        if flag in given and kind not in kinds
    ]


def _notes(splits: Any, kind: str) -> list[str]:
    classes, skipped = getattr(splits, "classes", ()), getattr(splits, "skipped", [])
    notes = list(getattr(getattr(splits, "description", None), "notes", ()))
    if getattr(splits, "counted", False):
        order = ", ".join(f"{number} {name}" for number, name in enumerate(classes[:10]))
        more = f" … and {len(classes) - 10:,} more" if len(classes) > 10 else ""
        advice = "; if they are not, name the classes in theirs: --classes a,b,c"
        notes.append(
            f"the labels were numbered in sorted order: {order}{more}. The model's outputs must be in this "
            f"order{advice if kind in FLAGS['classes'] else ''}"
        )
    if skipped:
        told = listed([name for name, _ in skipped], 5)
        many = f"{len(skipped):,} images" if len(skipped) > 1 else "one image"
        notes.append(f"{many} could not be read, and {'are' if len(skipped) > 1 else 'is'} left out: {told}")
    return notes


def _npz(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import arrays

    return arrays.load(wanted.data, groups=wanted.groups, test=wanted.test or None)


def _images(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import folder

    return folder.load(
        wanted.data,
        wanted.table or None,
        path=wanted.path or "path",
        split=wanted.split,
        **_of_images(wanted),
    )


def _saved(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import folder

    return folder.from_huggingface(wanted.data, image=wanted.path or "image", **_of_images(wanted))


def _of_images(wanted: Experiment) -> dict[str, Any]:
    return {
        "label": wanted.label,
        "groups": wanted.groups,
        "classes": wanted.classes or None,
        "test_share": wanted.test_share,
        "image_size": wanted.image_size,
        "cache": Path(wanted.cache) if wanted.cache else CACHE,
        "corrupt": wanted.corrupt,
    }


def _table(wanted: Experiment) -> Mapping[str, Samples]:
    from evenprune.data import tabular

    return tabular.load(
        wanted.data,
        label=wanted.label,
        groups=wanted.groups,
        split=wanted.split,
        test_share=wanted.test_share,
    )


READERS: dict[str, Callable[[Experiment], Mapping[str, Samples]]] = {
    "npz": _npz,
    "images": _images,
    "saved": _saved,
    "table": _table,
}

"""Arrays of inputs, labels and groups to the splits that prune() takes: people's own, or those of an NPZ."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenprune.data.arrays import not_finite
from evenprune.data.class_labels import SHOWN
from evenprune.data.labelled import Inputs, Listing, Loaded, Wishes, assemble
from evenprune.groups import Column, renamed, to_array
from evenprune.reading import counted, listed, quoted
from evenprune.tally import InputProblems


@dataclass(frozen=True, kw_only=True)
class Words:
    """What the user calls the arrays; in messages."""

    where: str = "the arrays"
    inputs: str = "images"
    labels: str = "labels"
    group: str = "groups[{!r}]"
    before: str = ""  # each message, such as the name of a file


def loaded(
    inputs: Any,
    labels: Any,
    groups: Mapping[str, Any],
    split: Any,
    *,
    wishes: Wishes,
    words: Words = Words(),  # noqa: B008 - frozen
    arranged: Callable[[NDArray[Any]], NDArray[Any]] | None = None,
) -> Loaded:
    """The samples in splits by name; or one error with all that is wrong.

    arranged: brings images into the order of axes that is wished for; None: the inputs keep their shape.
    """
    values, problems = _inputs(inputs, words.inputs, arranged)
    given = {words.labels: labels} | {words.group.format(name): own for name, own in groups.items()}
    given |= {} if split is None else {"split": split}
    columns = {name: to_array(own) for name, own in given.items()}
    wrong = {name: _column_problems(own, name, words) for name, own in columns.items()}
    problems += [problem for some in wrong.values() for problem in some]
    problems += _unequal({words.inputs: len(values)} | {n: len(c) for n, c in columns.items() if c.ndim})
    problems = [words.before + problem for problem in problems]
    if problems and len({len(values), *(len(c) for c in columns.values() if c.ndim)}) > 1:
        raise InputProblems(problems + wishes.problems(drawn=split is None))
    sound = {name: None if wrong[name] else own for name, own in columns.items()}
    attributes = {name: sound[words.group.format(name)] for name in groups}
    listing = Listing(
        where=words.where,
        names=[f"sample {i}" for i in range(len(values))],
        labels=_listed(sound[words.labels]),
        columns={name: _coded(own) for name, own in attributes.items() if own is not None},
        splits=_listed(sound.get("split")),
    )
    return assemble(
        listing, lambda places: Inputs(_taken(values, places), np.arange(len(places))), wishes, problems
    )


def _taken(values: NDArray[Any], places: Sequence[int]) -> NDArray[Any]:
    """values[places]; without a copy where that is all of them in order."""
    return values if np.array_equal(places, np.arange(len(values))) else values[places]


def _listed(column: NDArray[Any] | None) -> list[Any] | None:
    return None if column is None else column.tolist()


def _coded(column: NDArray[Any]) -> Any:
    """Of whole numbers from −1 on, −1 stands for a missing value, as prune() takes it; notes stay."""
    values = column.tolist()
    if column.dtype.kind == "i" and column.size and column.min() == -1:
        values = [None if value == -1 else value for value in values]
    return renamed(column, values) if isinstance(column, Column) else values


def _unequal(lengths: Mapping[str, int]) -> list[str]:
    if len(set(lengths.values())) < 2:
        return []
    return ["unequal lengths: " + ", ".join(f"{name} {count:,}" for name, count in lengths.items())]


def _column_problems(column: NDArray[Any], name: str, words: Words) -> list[str]:
    """One plain value a sample."""
    if not column.ndim:
        return [f"{name} is {quoted(column.item())}: give one value per sample"]
    if column.ndim > 1:
        hint = f" (of one-hot rows: {name}.argmax(1))" if name == words.labels and column.ndim == 2 else ""
        return [f"{name} has shape {list(column.shape)}: give one value per sample{hint}"]
    if column.dtype.kind in "cV" or (
        column.dtype.kind == "O" and any(_nested(value) for value in column.tolist())
    ):
        first = next((value for value in column.tolist() if _nested(value)), column.dtype)
        return [f"{name} holds {quoted(first)}: give one plain value per sample"]
    return []


def _nested(value: Any) -> bool:
    return isinstance(value, list | tuple | set | dict) or (isinstance(value, np.ndarray) and value.ndim > 0)


# --- inputs ---


def _inputs(
    given: Any, name: str, arranged: Callable[[NDArray[Any]], NDArray[Any]] | None
) -> tuple[NDArray[Any], list[str]]:
    """Bytes or float32 [N, …]; and what is wrong with them."""
    each = isinstance(given, list | tuple) or getattr(given, "dtype", None) == np.dtype(object)
    array, problems = _stacked([to_array(one) for one in given], name) if each else (to_array(given), [])
    if not problems:
        problems = _number_problems(array, name)
    if problems:
        return np.atleast_1d(array), problems
    try:
        array = array if arranged is None else arranged(array)
    except InputProblems as error:
        return array, error.problems
    if array.dtype == np.uint8:
        return array, []
    with np.errstate(over="ignore"):  # what becomes infinite is refused
        array = array.astype(np.float32, copy=False)
    return array, _not_finite(array)


def _not_finite(array: NDArray[Any]) -> list[str]:
    """NaN and infinity are found by the largest and smallest numbers: no copy of all is made."""
    inner = tuple(range(1, array.ndim))
    ends = [array.max(inner, initial=0), array.min(inner, initial=0)]
    bad = np.flatnonzero(~np.isfinite(ends).all(0))
    return [not_finite(bad.size, int(bad[0]))] if bad.size else []


def _number_problems(array: NDArray[Any], name: str) -> list[str]:
    if array.dtype.kind not in "biuf":
        shown = listed(array.reshape(-1)[:3].tolist())
        return [f"{name} holds {array.dtype}, such as {shown}: {_pixels(array)}"]
    if array.ndim < 2:
        return [f"{name} has shape {list(array.shape)}: give an image, or a row of numbers, for each sample"]
    return []


def _pixels(array: NDArray[Any]) -> str:
    files = "; of image files, give a table of them to folder.load" if array.dtype.kind in "US" else ""
    return f"give pixels, or other numbers{files}"


def _stacked(arrays: Sequence[NDArray[Any]], name: str) -> tuple[NDArray[Any], list[str]]:
    """Images one by one as an array [N, …]; where that cannot be, why: those of each shape are counted."""
    nothing, total = np.zeros(len(arrays)), f"{len(arrays):,} {name}"
    strange = [place for place, one in enumerate(arrays) if one.dtype.kind not in "biuf"]
    if strange:
        told = listed([f"sample {place}" for place in strange], SHOWN).replace("'", "")
        many = counted(len(strange), f"of {total} is no array", f"of {total} are no arrays")
        what = f"{many} of numbers: {told}"
        return nothing, [f"{what}; {_pixels(arrays[strange[0]])}"]
    forms = [f"{list(one.shape)}{' of bytes' * (one.dtype == np.uint8)}" for one in arrays]
    kinds = Counter(forms)
    if len(kinds) < 2:
        return np.stack(arrays) if arrays else nothing, []
    told = ", ".join(f"{k} ({n:,}, such as sample {forms.index(k)})" for k, n in kinds.most_common(SHOWN))
    more = f" … and {len(kinds) - SHOWN:,} more" if len(kinds) > SHOWN else ""
    return nothing, [
        f"the {name} have {len(kinds):,} different forms: {told}{more}. Bring them to one, or give image "
        "files to folder.load(…, image_size=64)"
    ]

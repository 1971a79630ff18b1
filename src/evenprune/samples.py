"""Data as people have it (tensors, data sets, columns of groups) to splits for training and audits."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evenprune.data.arrays import Normalised, not_finite
from evenprune.data.named_split import NamedSplit
from evenprune.groups import as_columns, cells_of, encode, noted, renamed, to_array
from evenprune.intake import crowded, one_group
from evenprune.predict import Predictions, as_split
from evenprune.reading import counted
from evenprune.recipe import Split
from evenprune.splits import HELDOUT
from evenprune.tally import InputProblems

Groups = str | Sequence[str] | Mapping[str, Sequence[str]] | None
Columns = dict[str, NDArray[Any]]  # by attribute, one value per sample; None where it is missing
Scaling = tuple[Tensor | None, Tensor | None]  # mean and deviation of each channel, as a Split has them


@dataclass(frozen=True)
class Samples:
    """All splits of an experiment, with the same groups in each."""

    names: tuple[str, ...]  # of the groups that the training data has, or, if it has none, all splits
    splits: dict[str, Split]  # group ids point into names; −1: missing, or not in the training data
    columns: dict[str, Columns]  # what an audit groups by
    unseen: dict[str, tuple[str, ...]]  # groups of each split that the training data has not

    @property
    def grouped_train(self) -> bool:
        """Whether the group of any training sample is known."""
        return bool((self.splits["train"].groups >= 0).any())


def read(data: Mapping[str, Any], groups: Groups, *, needs_groups: bool = True) -> Samples:
    """Splits by name, "train" among them, or one error that lists every problem.

    needs_groups: whether the training samples must have groups. Where they need none and have less than two,
    groups are those of the other splits.
    """
    problems: list[str] = []
    parts = {}
    for name, value in data.items():
        try:
            parts[name] = _parts(value, groups, optional=name == "train" and not needs_groups)
            problems += [f"{name}: {p}" for p in _problems(*parts[name])]
        except (TypeError, ValueError) as error:
            problems.append(f"{name}: {error}")
    scaling = {name: _scaling(value) for name, value in data.items()}
    if not problems:
        columns = {name: own for name, (_, _, own) in parts.items()}
        problems += _column_problems(columns)
        if not needs_groups:
            columns = _filled(columns, len(parts["train"][1]))
        problems += _form_problems({name: inputs for name, (inputs, _, _) in parts.items()})
        problems += _scaling_problems(scaling)
        without = not needs_groups and _unknown(columns["train"])
        problems += _unauditable({n: own for n, own in columns.items() if n != "train" or not without})
        problems += _one_class(parts["train"][1])
    if problems:
        raise InputProblems(problems)
    ids, names = _encode_together(columns)
    known = ids if _unknown(columns["train"]) else {"train": ids["train"]}
    seen = np.unique(np.concatenate([own[own >= 0] for own in known.values()]))  # groups of the training data
    place = np.full(len(names) + 1, -1, dtype=np.int64)  # the last entry serves id −1
    place[seen] = np.arange(len(seen))
    splits = {n: Split(x, y, torch.as_tensor(place[ids[n]]), *scaling[n]) for n, (x, y, _) in parts.items()}
    unseen = {n: tuple(names[i] for i in np.setdiff1d(own[own >= 0], seen)) for n, own in ids.items()}
    return Samples(tuple(names[i] for i in seen), splits, columns, unseen)


def _filled(columns: dict[str, Columns], samples: int) -> dict[str, Columns]:
    """Training samples with nothing to compare get the columns of another split, no group of them known."""
    if columns["train"] and len(encode(columns["train"])[1]) > 1:
        return columns
    named = next((own for own in columns.values() if own), ["group"])
    return columns | {"train": {name: np.full(samples, None, dtype=object) for name in named}}


def _unknown(columns: Columns) -> bool:
    """Whether no sample has a group."""
    return len(encode(columns)[1]) == 0


def _encode_together(columns: Mapping[str, Columns]) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Group ids [N] per split, and the names of all groups: a name means one group in every split."""
    joined = {
        attribute: _joined([own[attribute] for own in columns.values()]) for attribute in columns["train"]
    }
    ids, names = encode(joined)
    sizes = [len(next(iter(own.values()))) for own in columns.values()]
    return dict(zip(columns, np.split(ids, np.cumsum(sizes)[:-1]), strict=True)), names


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    alike = len({column.dtype.kind for column in columns}) == 1
    return np.concatenate(columns if alike else [column.astype(object) for column in columns])


def strangers(samples: Samples) -> list[str]:
    """A sentence for each split with groups that the training data has not: nothing is constrained there."""
    return [
        counted(len(unseen), f"of the groups in {split} is", f"of the groups in {split} are")
        + f" not in the training data ({', '.join(unseen[:5])}{' …' if len(unseen) > 5 else ''}): audited, "
        "but not constrained."
        for split, unseen in samples.unseen.items()
        if unseen
    ]


def remarked(samples: Samples, dense: Predictions) -> Samples:
    """The samples, with a note for the audits if the dense model is no better than a guess; a warning too.

    dense: its answers on the training samples.
    """
    notes = _guesses(dense)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    columns = {
        split: {name: noted(values, notes) if notes else values for name, values in own.items()}
        for split, own in samples.columns.items()
    }
    return replace(samples, columns=columns)


def _guesses(dense: Predictions) -> list[str]:
    """A sentence if always answering the most frequent class would be as good, but for chance."""
    share = float(dense.labels.bincount().max()) / len(dense.labels)
    right = float(dense.correct.double().mean())
    if right > share + 2 * math.sqrt(share * (1 - share) / len(dense.labels)):  # two standard errors
        return []
    better = "no better" if right <= share else "hardly better"
    return [
        f"The dense model is right in {100 * right:.1f} % of the training samples, {better} than always "
        f"answering the most frequent class ({100 * share:.1f} %): wrong class order, "
        "wrong normalisation or untrained weights?"
    ]


def _form_problems(inputs: Mapping[str, Tensor]) -> list[str]:
    """All splits go through one model: their inputs have one type and, but for their number, one shape."""
    forms = {name: _form(own[0]) for name, own in inputs.items()}
    return [
        f"{name}: an input is {form}, in train it is {forms['train']}; give all splits in one form"
        for name, form in forms.items()
        if form != forms["train"]
    ]


def _column_problems(columns: Mapping[str, Columns]) -> list[str]:
    """All splits that have groups are grouped by the same attributes as the first of them."""
    named = {name: ", ".join(sorted(own)) for name, own in columns.items() if own}
    first = next(iter(named), "train")
    return [
        f"{name}: the samples are grouped by {attributes}, those of {first} by {named[first]}; give all "
        "splits the same columns of groups, or say with groups= which to use"
        for name, attributes in named.items()
        if attributes != named[first]
    ]


def _scaling_problems(scaling: Mapping[str, Scaling]) -> list[str]:
    """All splits must be normalised alike: one that is not is another problem to the model."""
    told = {name: _in_words(*given) for name, given in scaling.items()}
    if len(set(told.values())) < 2:
        return []
    each = "; ".join(f"{name} {words}" for name, words in told.items())
    return [f"the splits are not normalised alike ({each}): give all of them in one form"]


def _in_words(mean: Tensor | None, std: Tensor | None) -> str:
    if mean is None or std is None:
        return "not at all"
    texts = (", ".join(f"{v:.4g}" for v in values.flatten().tolist()) for values in (mean, std))
    return "by mean {} and deviation {}".format(*texts)


def _one_class(labels: Tensor) -> list[str]:
    if bool((labels != labels[0]).any()):
        return []
    return [f"train: there is one class only: all {len(labels):,} labels are {int(labels[0])}"]


def _unauditable(columns: Mapping[str, Columns]) -> list[str]:
    """Groups that an audit would refuse after the training."""
    found = []
    for split, own in columns.items():
        cell, cells = cells_of(own)
        problems = crowded(own, cells, cell.size)
        who = "choices on held-out samples and their audits" if split == HELDOUT else "audits"
        problems += [one_group(own, cells[0], f"{who} compare groups")] if len(cells) == 1 else []
        found += [f"{split}: {problem}" for problem in problems]
    return found


def _parts(data: Any, groups: Groups, *, optional: bool) -> tuple[Any, Tensor, Columns]:
    """Inputs, labels and the chosen group columns of one split; no column where groups may be missing."""
    inputs, labels, given = _three(data, optional=optional)
    if isinstance(data, NamedSplit) and not isinstance(groups, Mapping):
        given = data.group_names()
    if given is None and not optional:
        raise ValueError("groups is None; give one value per sample (−1 or None where it is not known)")
    ids = torch.zeros(len(labels), dtype=torch.int64)  # the groups are read from their columns
    split = as_split((_tensor(inputs), _tensor(_numbers(labels)), ids))
    return split.inputs, split.labels, {} if given is None else _chosen(given, groups)


def _numbers(labels: Any) -> Any:
    """The labels, unless they are words, which say nothing of the order of the model's classes."""
    first = None if isinstance(labels, Tensor) or not len(labels) else next(iter(labels))
    if isinstance(first, str | bytes):
        raise ValueError(
            f"the labels are words, the first is {_shown(str(first))}: give the model's numbers of the "
            "classes, 0, 1, …, such as [classes.index(word) for word in labels]"
        )
    return labels


def _tensor(values: Any) -> Tensor:
    """Values as a tensor that shares their memory, read-only memory maps included: nothing writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(values)


def _three(data: Any, *, optional: bool) -> tuple[Any, Any, Any]:
    """(x, y, g) of tensors, of a data set, or of a Split; g is one column, or a mapping of columns.

    optional: (x, y) will do.
    """
    if isinstance(data, Split):
        return data.inputs, data.labels, data.groups
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} is neither (inputs, labels, groups) nor a map-style data set "
            "(with __len__ and __getitem__). Of a DataLoader, pass its .dataset."
        )
    if isinstance(data, tuple | list) and data and hasattr(data[0], "shape"):
        return _exactly_three(tuple(data), optional=optional)
    read = getattr(data, "tensors", None) or _read_items(data, optional=optional)
    return _exactly_three(read, optional=optional)


def _scaling(data: Any) -> Scaling:
    """What the inputs are normalised by when they are used, where the data says so."""
    if isinstance(data, Split):
        return data.mean, data.std
    first = data[0] if isinstance(data, tuple | list) and data else None
    if not isinstance(first, Normalised) or first.scaling is None:
        return None, None
    mean, std = (torch.tensor(values) for values in first.scaling)
    return mean, std


def _exactly_three(columns: tuple[Any, ...], *, optional: bool) -> tuple[Any, Any, Any]:
    if optional and len(columns) == 2:
        columns = (*columns, None)
    if len(columns) != 3:
        raise ValueError(
            f"each sample must be (input, label, group), but has {len(columns)} parts; the group is one "
            'value, or a mapping such as {"race": …, "gender": …}'
        )
    return columns[0], columns[1], columns[2]


def _read_items(data: Any, *, optional: bool) -> tuple[Any, ...]:
    """Every item once: a data set that augments at random gives one fixed variant (see Recipe.augment)."""
    if not len(data):
        raise ValueError("there are no samples")
    items = [data[i] for i in range(len(data))]
    pairs = optional and isinstance(items[0], tuple | list) and len(items[0]) == 2
    for i, item in enumerate(items):
        if not isinstance(item, tuple | list) or len(item) != (2 if pairs else 3):
            form = "(input, label), as the first is" if pairs else "(input, label, group)"
            raise ValueError(f"sample {i} is {_kind(item)}; each must be {form}")
    inputs, labels, *given = zip(*items, strict=True)
    return _stacked(inputs), torch.as_tensor(_whole_numbers(labels)), *map(_by_column, given)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)}" if hasattr(value, "__len__") else type(value).__name__


def _stacked(inputs: Sequence[Any]) -> Tensor:
    """Inputs of one shape and type as one tensor [N, …]; else the first that differs."""
    tensors: list[Tensor] = []
    for i, value in enumerate(inputs):
        try:
            tensors.append(torch.as_tensor(value))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"the input of sample {i} is a {type(value).__name__}, not a tensor, an array or numbers; "
                "of pictures, use e.g. torchvision's ToTensor in the data set"
            ) from None
        if tensors[i].shape != tensors[0].shape or tensors[i].dtype != tensors[0].dtype:
            raise ValueError(
                f"the input of sample {i} is {_form(tensors[i])}, that of sample 0 is {_form(tensors[0])}; "
                "all must have one shape and type: resize, crop or convert them in the data set"
            )
    return torch.stack(tensors)


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _whole_numbers(labels: Sequence[Any]) -> list[int]:
    found = []
    for i, label in enumerate(labels):
        try:
            found.append(int(label))
            if not isinstance(label, str) and found[i] != label:
                raise ValueError
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise ValueError(
                f"the label of sample {i} is {_shown(label)}; labels are whole numbers 0, 1, …"
            ) from None
    return found


def _by_column(values: Sequence[Any]) -> Any:
    """One value per item, or one mapping per item, as columns."""
    mapped = isinstance(values[0], Mapping)
    names = set(values[0]) if mapped else set()
    for i, value in enumerate(values):
        if isinstance(value, Mapping) != mapped or (mapped and set(value) != names):
            own = sorted(map(str, value)) if isinstance(value, Mapping) else _shown(value)
            first = sorted(map(str, names)) if mapped else _shown(values[0])
            raise ValueError(
                f"the groups of sample {i} are {own}, those of sample 0 are {first}; give each sample the "
                "same attributes, with None where one is not known"
            )
    if mapped:
        return {name: [_one(value[name], i) for i, value in enumerate(values)] for name in values[0]}
    return [_one(value, i) for i, value in enumerate(values)]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _one(value: Any, sample: int) -> Any:
    """A single group value; tensors and arrays of one element become numbers."""
    try:
        return _plain(value)
    except (RuntimeError, ValueError):
        raise ValueError(f"the group of sample {sample} is {_shown(value)}; give one value") from None


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _chosen(given: Any, groups: Groups) -> Columns:
    """The group columns that `groups` asks for, their codes replaced by names where it gives names."""
    columns = {name: _column(values) for name, values in as_columns(given).items()}
    if isinstance(groups, str):
        groups = [groups]
    wanted = list(groups) if groups is not None else list(columns)
    if not isinstance(given, Mapping) and not hasattr(given, "columns"):
        if len(wanted) > 1:
            raise ValueError(
                f"groups names {len(wanted)} attributes, but the data has one column of groups; "
                'give a mapping, such as (x, y, {"race": race, "gender": gender})'
            )
        columns = {wanted[0]: columns["group"]} if wanted else {}
    absent = [name for name in wanted if name not in columns]
    if absent or not wanted:
        raise ValueError(f"there is no group column {absent}; the data has {list(columns) or 'none'}")
    named = groups if isinstance(groups, Mapping) else {}
    return {a: _named(columns[a], named[a], a) if a in named else columns[a] for a in wanted}


def _column(values: Any) -> NDArray[Any]:
    """One value per sample. Of whole numbers, −1 stands for a missing value, as in training."""
    array = to_array(values)
    if array.dtype.kind == "i" and array.size and array.min() == -1:
        return renamed(array, [None if value == -1 else value for value in array.tolist()])
    return array


def _named(codes: NDArray[Any], names: Sequence[str], attribute: str) -> NDArray[Any]:
    """Codes 0, 1, … as names; missing ones stay missing."""
    listed = codes.tolist()
    outside = [
        (i, c)
        for i, c in enumerate(listed)
        if c is not None and not (isinstance(c, int) and 0 <= c < len(names))
    ]
    if outside:
        first, code = outside[0]
        many = counted(len(outside), "group id", "group ids")
        raise ValueError(
            f"{many} of {attribute!r} outside −1 … {len(names) - 1} ({len(names)} names "
            f"are given); the first is {code!r} at sample {first}"
        )
    return renamed(codes, [None if code is None else names[code] for code in listed])


def _problems(inputs: Tensor, labels: Tensor, columns: Columns) -> Iterator[str]:
    sizes = {"inputs": len(inputs), "labels": len(labels)}
    sizes |= {f"groups[{name!r}]": len(column) if column.ndim else 0 for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        yield "unequal lengths: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    if not min(sizes.values()):
        yield "there are no samples"
    if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
        bad = ~inputs.isfinite().flatten(1).all(1)
        yield not_finite(int(bad.sum()), int(bad.nonzero()[0]))
    for name, column in columns.items():
        if column.ndim != 1:
            yield f"groups[{name!r}] has shape {list(column.shape)}: give one value per sample"
        elif column.dtype.kind == "i" and column.size and column.min() < -1:
            yield f"groups[{name!r}] holds {column.min()}: ids start at 0, and −1 stands for a missing one"

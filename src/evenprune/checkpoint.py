"""Atomic save and resume: one safetensors file with its JSON inside, so that old and new never mix.

A checkpoint is a tree of dictionaries, lists, tuples, numbers, texts and tensors. Its tensors become those of
the file; the rest becomes JSON in the file's header. Nothing is unpickled, so loading runs no foreign code.
"""

import contextlib
import errno
import functools
import hashlib
import json
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evenprune import atomic

FORMAT = "evenprune checkpoint 1"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FINGERPRINT_SAMPLES = 1000


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read."""


class DifferentExperiment(ValueError):
    """The folder holds another experiment than the one that is asked for."""


def save(path: Path, tree: Mapping[str, Any]) -> None:
    """Replace the checkpoint at once and whole; if that fails, the one before it stays as it was."""
    from safetensors.torch import save as to_bytes

    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(tree, "", tensors))
    header = {"format": FORMAT, "json": text, "checksum": _checksum(text, tensors)}
    data = to_bytes(tensors, header)
    try:
        atomic.write_bytes(path, data)
    except OSError as error:
        raise CheckpointError(_write_failure(path, len(data), error)) from error


def _write_failure(path: Path, size: int, error: OSError) -> str:
    kept = "The last good checkpoint is untouched" if path.exists() else "There is no earlier checkpoint"
    if error.errno not in DISK_FULL:
        return f"{error} {kept}."
    free = shutil.disk_usage(path.parent).free
    return (
        f"No room for the checkpoint {path}: it needs {size / 1e6:.2f} MB, {free / 1e6:.2f} MB are free "
        f"({error.strerror or error}). {kept}. Free some space and start again: the training resumes."
    )


def load(path: Path) -> dict[str, Any] | None:
    """The tree that was saved, with tensors on the CPU; None if there is no checkpoint."""
    if not path.exists():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dictionary
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, str(error)) from error
    if header.get("format") != FORMAT:
        raise _unreadable(path, f"its format is {header.get('format')!r}, not {FORMAT!r}")
    if header.get("checksum") != _checksum(header["json"], tensors):
        raise _unreadable(path, "its content does not match its checksum")
    tree: dict[str, Any] = _decode(json.loads(header["json"]), tensors)
    return tree


def _unreadable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint {path} cannot be read: {reason}. It was cut or changed after it was written. "
        "Put back a copy of it, or remove it to train again from the start."
    )


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        total = zlib.crc32(_as_bytes(tensors[name]), total)
    return f"{total:08x}"


def _as_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _encode(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for a tree; its tensors are put into `tensors` under their place in the tree."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[place] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": place}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(v, f"{place}.{i}", tensors) for i, v in enumerate(value)]}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "dict"  # MultiStepLR has a Counter
        return {kind: [[_key(k, place), _encode(v, f"{place}.{k}", tensors)] for k, v in value.items()]}
    raise TypeError(
        f"A checkpoint cannot hold {place.lstrip('.')}, a {type(value).__name__}: only numbers, texts, "
        "tensors and containers of these. Functions in an optimizer's or scheduler's state cannot be saved."
    )


def _key(key: Any, place: str) -> str | int:
    if isinstance(key, str | int):
        return key
    raise TypeError(
        f"A checkpoint cannot hold the key {key!r} of {place.lstrip('.')}: only texts and integers."
    )


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind in ("list", "tuple"):
        items = [_decode(v, tensors) for v in content]
        return items if kind == "list" else tuple(items)
    entries = {k: _decode(v, tensors) for k, v in content}
    return Counter(entries) if kind == "counter" else entries


def claim(folder: Path, identity: Mapping[str, Any]) -> None:
    """Make the folder this experiment's own, or refuse, naming what differs from the experiment it holds."""
    place = folder / "experiment.json"
    now = json.loads(json.dumps(identity))
    if place.exists():
        _refuse_other(folder, _read_experiment(place), now)
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.rglob(".evenprune-*.tmp"):  # of a write that was killed
        with contextlib.suppress(OSError):
            left_over.unlink()
    if not place.exists():
        atomic.write_text(place, json.dumps(now, indent=1))


def _read_experiment(place: Path) -> Any:
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _unreadable(place, str(error)) from error


def _refuse_other(folder: Path, held: Any, now: Any) -> None:
    found = list(differences(held, now))
    if not found:
        return
    shown = found[:10] + ([f"… and {len(found) - 10} more"] if len(found) > 10 else [])
    raise DifferentExperiment(
        f"{folder} holds a different experiment. In the folder, and now:\n"
        + "\n".join(f"- {line}" for line in shown)
        + "\nGive another folder, or remove this one to train again."
    )


def differences(held: Any, now: Any, place: str = "") -> Iterator[str]:
    """Where two plain JSON values differ, as 'place: value against value'."""
    if isinstance(held, dict) and isinstance(now, dict):
        for key in held | now:
            yield from differences(held.get(key), now.get(key), f"{place}.{key}".lstrip("."))
    elif isinstance(held, list) and isinstance(now, list) and len(held) == len(now):
        for i, (a, b) in enumerate(zip(held, now, strict=True)):
            yield from differences(a, b, f"{place}[{i}]")
    elif json.dumps(held) != json.dumps(now):  # as texts: NaN is then equal to NaN
        yield f"{place}: {_short(held)} against {_short(now)}"


def _short(value: Any) -> str:
    text = f"{len(value)} items" if isinstance(value, list) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


def describe(value: Any) -> Any:
    """A value as plain JSON that is the same whenever the value means the same."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return fingerprint(value)
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"calls": _describe_callable(value)} if callable(value) else {}
        return kind | {f.name: describe(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): describe(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [describe(v) for v in value]
    if callable(value):
        return _describe_callable(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _describe_callable(value: Callable[..., Any]) -> Any:
    if isinstance(value, functools.partial):
        settings = {str(i): describe(v) for i, v in enumerate(value.args)}
        return (
            {"calls": describe(value.func)} | settings | {k: describe(v) for k, v in value.keywords.items()}
        )
    owner = value if hasattr(value, "__qualname__") else type(value)
    return f"{owner.__module__}.{owner.__qualname__}"


def fingerprint(tensor: Tensor) -> str:
    """Shape, type and a digest of a tensor; of a large one, of a thousand rows spread over it."""
    rows = tensor.detach()
    if rows.ndim > 1 and rows.shape[0] > FINGERPRINT_SAMPLES:
        picked = torch.linspace(0, rows.shape[0] - 1, FINGERPRINT_SAMPLES, dtype=torch.float64).round().long()
        rows = rows.index_select(0, picked.to(rows.device))
    digest = hashlib.sha256(_as_bytes(rows)).hexdigest()[:16]
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} {digest}"

"""Atomic save and resume: one safetensors file with its JSON inside, so that old and new never mix.

A checkpoint is a tree of dictionaries, lists, tuples, numbers, texts and tensors. Its tensors become those of
the file; the rest becomes JSON in the file's header. Nothing is unpickled, so loading runs no foreign code.
"""

import contextlib
import errno
import functools
import hashlib
import json
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evenprune import atomic

FORMAT = "evenprune checkpoint 1"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FINGERPRINT_SAMPLES = 1000
DEEPEST = 10  # levels of values within values that tell experiments apart


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


def describe(value: Any, within: tuple[int, ...] = ()) -> Any:
    """A value as plain JSON: the same in every process if the value means the same, else another.

    Functions are told apart by their code and what they close over, objects by their attributes. `within`
    holds the ids of the values that this one is a part of: what contains itself is not followed forever.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return fingerprint(value)
    if isinstance(value, np.ndarray | np.generic):
        content = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        return f"{value.dtype} {list(value.shape)} {hashlib.sha256(content).hexdigest()[:16]}"
    if id(value) in within or len(within) > DEEPEST:
        return f"… {type(value).__qualname__}"
    inner = functools.partial(describe, within=(*within, id(value)))
    if isinstance(value, Mapping):
        return {str(k): inner(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [inner(v) for v in value]
    if isinstance(value, set | frozenset):  # their order differs from process to process
        return sorted((inner(v) for v in value), key=json.dumps)
    return _describe_callable(value, inner) if _is_function(value) else _describe_object(value, inner)


def _is_function(value: Any) -> bool:
    return isinstance(value, functools.partial | MethodType | ModuleType) or hasattr(value, "__qualname__")


def _describe_callable(value: Any, inner: Callable[[Any], Any]) -> Any:
    """A class or a built-in by its name; a function by name, code, defaults, closure and plain globals."""
    if isinstance(value, functools.partial):
        settings = {str(i): inner(v) for i, v in enumerate(value.args)}
        return {"calls": inner(value.func)} | settings | {k: inner(v) for k, v in value.keywords.items()}
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, MethodType):
        return {"calls": inner(value.__func__), "of": inner(value.__self__)}
    name = f"{value.__module__}.{value.__qualname__}"
    if not isinstance(value, FunctionType):
        return name
    parts = {
        "defaults": [inner(v) for v in value.__defaults__ or ()],
        "keywords": {k: inner(v) for k, v in (value.__kwdefaults__ or {}).items()},
        "closure": [_inside(cell, inner) for cell in value.__closure__ or ()],
        "globals": _plain_globals(value),
    }
    return {"calls": name, "code": code_digest(value)} | {k: v for k, v in parts.items() if v}


def _inside(cell: CellType, inner: Callable[[Any], Any]) -> Any:
    try:
        return inner(cell.cell_contents)
    except ValueError:  # a cell that is still empty
        return "nothing yet"


def _plain_globals(function: FunctionType) -> dict[str, Any]:
    """Numbers and texts that the function reads from its module, such as LR in SGD(p, lr=LR)."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    held = {name: function.__globals__.get(name) for name in sorted(names)}
    return {n: v for n, v in held.items() if isinstance(v, bool | int | float | str) and n[:2] != "__"}


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of all functions that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def code_digest(function: Any) -> str:
    """What a function does, as a short text; empty where there is no Python code to read."""
    code, digest = getattr(function, "__code__", None), hashlib.sha256()
    for part in _codes(code) if code is not None else ():
        constants = [_constant(c) for c in part.co_consts if not isinstance(c, CodeType)]
        digest.update(part.co_code + repr((constants, part.co_names)).encode())
    return digest.hexdigest()[:16] if code is not None else ""


def _constant(value: Any) -> str:
    ordered = sorted(map(_constant, value)) if isinstance(value, frozenset) else value
    return f"{type(value).__name__} {ordered!r}"  # 1, 1.0 and True are not the same


def _describe_object(value: Any, inner: Callable[[Any], Any]) -> Any:
    """An object by its type and its attributes; one without attributes by what it says about itself."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    slots = [name for owner in type(value).__mro__ for name in _slots(owner)]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )
    if is_dataclass(value):
        own = {f.name: inner(getattr(value, f.name)) for f in fields(value)}
        return {"calls": kind} | own if callable(value) else own
    if not held:
        return f"{kind} {without_addresses(repr(value))}"
    return {"calls" if callable(value) else "is": kind} | {name: inner(held[name]) for name in sorted(held)}


def _slots(owner: type) -> tuple[str, ...]:
    slots = owner.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def without_addresses(text: str) -> str:
    """The text of an object without where in memory it lies, which is another place in every process."""
    return re.sub(r"\b0x[0-9a-fA-F]+", "0x…", text)


def structure(model: nn.Module) -> str:
    """What a model's weights do not tell: its modules with their settings, and how people's own compute."""
    kinds = {type(module) for module in model.modules()}
    own = {k.__qualname__: code_digest(k.forward) for k in kinds if not k.__module__.startswith("torch.")}
    text = without_addresses(str(model)) + json.dumps(own, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint(tensor: Tensor) -> str:
    """Shape, type and a digest of a tensor; of a large one, of a thousand rows spread over it."""
    rows = tensor.detach()
    if rows.ndim > 1 and rows.shape[0] > FINGERPRINT_SAMPLES:
        picked = torch.linspace(0, rows.shape[0] - 1, FINGERPRINT_SAMPLES, dtype=torch.float64).round().long()
        rows = rows.index_select(0, picked.to(rows.device))
    digest = hashlib.sha256(_as_bytes(rows)).hexdigest()[:16]
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} {digest}"

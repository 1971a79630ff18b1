"""One flat value per experiment: its fields are the flags of the command line and the axes of a sweep.

Equal experiments have equal ids; the folder of the results and the device are no part of it.
"""

import hashlib
import inspect
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from evenprune import atomic
from evenprune.group_rules import GroupRules, parse_bins

if TYPE_CHECKING:
    from evenprune.method import Method
    from evenprune.recipe import Recipe

CHOICES = {
    "corrupt": ("refuse", "skip"),
    "optimizer": ("sgd", "adamw"),
    "precision": ("auto", "float32", "bfloat16"),
    "scope": ("layer", "global"),
}


FAST = ("compile", "graph", "channels-last", "data-on-device")  # what makes training fast on a GPU

# Names that are another method with settings.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {"fairgrape-fast": ("fairgrape", {"fast": True})}

# steps: the learning rate falls tenfold at these fractions of the training
_SCHEDULE = re.compile(r"cosine|constant|steps(:0\.\d+(,0\.\d+)*)?")


def told(default: Any, text: str, *, metavar: str = "", identity: bool = True) -> Any:
    """A field with its one line of help; identity=False: it does not change what comes out."""
    return field(default=default, metadata={"help": text, "metavar": metavar, "identity": identity})


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What to prune, how, and how it is judged. `problems()` lists everything that is wrong with it."""

    model: str = told("", "FILE.py:function that returns the trained dense model.", metavar="MODEL")
    data: str = told("", "Folder of images, Hugging Face folder, table, or NPZ.", metavar="PATH")
    test: str = told("", "NPZ of the test samples, if they are apart.", metavar="FILE")
    weights: str = told("", "Weights of the dense model: .safetensors, .pt, .pth.", metavar="FILE")
    groups: tuple[str, ...] = told((), "Columns of groups (a,b or repeated): intersections.", metavar="COL")
    bin: tuple[str, ...] = told((), "Ranges of numbers: age=18,30 or age=quantiles:4.", metavar="RULE")
    merge_below: int | None = told(None, "Groups with fewer training samples become one.", metavar="N")
    table: str = told("", "Images: CSV, Parquet … of paths, labels, groups.", metavar="FILE")
    label: str = told("label", "Column of the labels.", metavar="COL")
    path: str = told("", "Column of the images (path, or image in Hugging Face).", metavar="COL")
    split: str = told("split", 'Column of the splits; drawn if none, or if "".', metavar="COL")
    classes: tuple[str, ...] = told((), "Classes in the model's order (a,b or repeated).", metavar="NAME")
    numeric: tuple[str, ...] = told((), "Tables: inputs that are numbers (a,b).", metavar="COL")
    categorical: tuple[str, ...] = told((), "Tables: inputs that are categories (a,b).", metavar="COL")
    ignore: tuple[str, ...] = told((), "Tables: columns that are no inputs (a,b).", metavar="COL")
    test_share: float = told(0.2, "Share of each class that is drawn to test.", metavar="X")
    heldout_share: float = told(0.0, "Share of each class that is held out for choices.", metavar="X")
    image_size: int | None = told(None, "Pixels that each side of an image gets.", metavar="N")
    corrupt: str = told("refuse", "Unreadable images: refuse or skip.", metavar="NAME")
    sparsity: float = told(0.9, "Share of the prunable weights that goes.", metavar="X")
    method: tuple[str, ...] = told(("ceag",), "Method, repeatable; such as ceag:dual_lr=0.1.", metavar="NAME")
    tolerance: float | None = told(None, "How much more than the average a group may lose.", metavar="X")
    dual_lr: float | None = told(None, "Step of the multipliers; else the method's own.", metavar="X")
    k: int = told(40, "Outcomes of each group in a replay buffer.", metavar="N")
    seeds: tuple[int, ...] = told((0,), 'Runs per method: "5" for seeds 0 to 4, or "3,7".', metavar="LIST")
    epochs: int = told(60, "Epochs in all.", metavar="N")
    pruning_epochs: int = told(15, "Epochs of these in which the sparsity rises.", metavar="N")
    batch_size: int = told(128, "Samples in a step.", metavar="N")
    lr: float = told(0.01, "Learning rate.", metavar="X")
    momentum: float = told(0.9, "Momentum of SGD.", metavar="X")
    weight_decay: float = told(0.0, "Weight decay, not on biases and norms.", metavar="X")
    optimizer: str = told("sgd", "sgd or adamw.", metavar="NAME")
    schedule: str = told("steps", "Of the rate: steps:0.6,0.9, cosine, constant.", metavar="NAME")
    augment: tuple[str, ...] = told((), "Changes of images, such as flip,crop:4,colour:0.2.", metavar="NAME")
    clip_norm: float | None = told(None, "Largest norm of a run's gradient.", metavar="X")
    precision: str = told("auto", "float32, bfloat16, or auto: bfloat16 on a GPU.", metavar="NAME")
    scope: str = told("layer", "Prune by layer, or global: over all layers.", metavar="NAME")
    pattern: str = told("", "Pattern of the masks, such as 2:4.", metavar="N:M")
    exclude: tuple[str, ...] = told((), "Layer that is never pruned; repeatable, * allowed.", metavar="NAME")
    select: str = told("", "Choose one run on this split: heldout.", metavar="SPLIT", identity=False)
    class_bias: bool = told(
        False, "Each run once more, with a class bias by label.", metavar="YES", identity=False
    )
    diagnostics: bool = told(
        False, "Gradient norm, curvature by group in the audits.", metavar="YES", identity=False
    )
    evaluate_every: int = told(1, "Epochs between evaluations on train and test.", metavar="N")
    fleet: int | None = told(None, "Runs that train at once, at most; all of them.", metavar="N")
    confidence: float = told(0.95, "Confidence of the audits.", metavar="X")
    without: tuple[str, ...] = told(
        (), "Off: compile, graph, channels-last, data-on-device.", metavar="NAME", identity=False
    )
    device: str = told("auto", "cpu, cuda …; auto: a GPU if there is one.", metavar="D", identity=False)
    cache: str = told("", "Folder of decoded images (runs/image-cache).", metavar="DIR", identity=False)
    out: str = told("", "Folder of the results, to resume from (runs/ID).", metavar="DIR", identity=False)

    @property
    def settings(self) -> dict[str, Any]:
        """What differs from the defaults and changes the result: fields that come later change no id."""
        named = [f for f in fields(self) if f.metadata["identity"] and getattr(self, f.name) != f.default]
        found = {f.name: getattr(self, f.name) for f in named}
        if "channels-last" in self.without:  # the others may change where a training is resumed
            found["without"] = "channels-last"
        return found

    @property
    def id(self) -> str:
        """A readable name and a short hash of all settings: digits-nft+ceag-s0.97-3f2a9c1b."""
        digest = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:8]
        source = re.split(r"[\\/]", self.data.rstrip("\\/").removesuffix(".npz"))[-1]
        methods = "+".join(name.partition(":")[0] for name in self.method)
        name = f"{source}-{methods}-s{self.sparsity:g}-{digest}"
        return re.sub(r"[^\w.+-]+", "_", name).strip("-")

    def problems(self) -> list[str]:
        """Every fault of the values themselves; files and data are read later."""
        return [
            *_text_problems(self),
            *atomic.folder_problems("out", self.out),
            *_number_problems(self),
            *_parsed_problems(self),
            *method_problems(self),
        ]

    def methods(self) -> list["Method"]:
        return [build_method(text, self) for text in self.method]

    def recipe(self) -> "Recipe":
        from evenprune import augment
        from evenprune.recipe import Recipe

        return Recipe(
            epochs=self.epochs,
            pruning_epochs=self.pruning_epochs,
            batch_size=self.batch_size,
            optimizer=_optimizer(self),
            scheduler=_scheduler(self),
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
            augment=augment.parse(self.augment)[0],
            precision=None if self.precision == "auto" else self.precision,  # type: ignore[arg-type]  # checked
            scope=self.scope,  # type: ignore[arg-type]
            pattern=_pattern(self.pattern),
            exclude=self.exclude,
            evaluate_every=self.evaluate_every,
            fleet_size=self.fleet,
            **{name.replace("-", "_"): False for name in self.without},  # type: ignore[arg-type]  # checked
        )


def _text_problems(e: Experiment) -> Iterator[str]:
    if not e.data:
        yield "data is missing: give a folder of images, a table, or an NPZ file with x, y and group columns"
    if not e.model:
        yield "model is missing: name the function that returns the dense model, as FILE.py:build_model"
    if not e.groups:
        yield "groups is missing: which column (of an NPZ: array) tells the groups apart?"
    for name, words in CHOICES.items():
        if getattr(e, name) not in words:
            yield f"{name} is {getattr(e, name)!r}: choose {' or '.join(words)}"
    if unknown := [name for name in e.without if name not in FAST]:
        yield f"without is {', '.join(unknown)}: choose {' or '.join(FAST)}"
    if not _SCHEDULE.fullmatch(e.schedule):
        yield f"schedule is {e.schedule!r}: choose cosine, constant, or steps as steps:0.6,0.8,0.9"
    if e.pattern and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", e.pattern):
        yield f"pattern is {e.pattern!r}: write it as 2:4, two of every four weights kept"
    if e.select not in ("", "heldout", "validation"):
        yield f"select is {e.select!r}: choose on heldout, a split that neither trains nor audits"
    if not e.method:
        yield f"method is missing: choose of {', '.join(_names())}"


def _number_problems(e: Experiment) -> Iterator[str]:
    """Ranges of the numbers; those of the recipe and of the methods are checked there too."""
    at_least = {"k": 1, "epochs": 1, "pruning_epochs": 0, "batch_size": 1, "evaluate_every": 1}
    at_least |= {"image_size": 1, "fleet": 1}
    for name, least in at_least.items():
        value = getattr(e, name)
        if value is not None and value < least:
            yield f"{name} is {value}: it must be at least {least}"
    for name in ("lr", "momentum", "weight_decay", "dual_lr", "clip_norm"):
        value = getattr(e, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield f"{name} is {value}: it must be a number that is not negative"
    if not 0 <= e.sparsity < 1:
        yield f"sparsity is {e.sparsity}: it must lie in [0, 1); 0.9 leaves one weight in ten"
    if e.tolerance is None:
        yield "tolerance is missing: how much more than the average may a group lose, e.g. 0.02?"
    elif not 0 <= e.tolerance <= 1:
        yield f"tolerance is {e.tolerance}: it must lie in [0, 1], such as 0.02 for 2 points"
    if not 0 < e.test_share < 1:
        yield f"test_share is {e.test_share}: it must lie between 0 and 1, such as 0.2"
    if not 0 <= e.heldout_share < 1:
        yield f"heldout_share is {e.heldout_share}: it must lie between 0 (none) and 1, such as 0.2"
    if not 0.5 < e.confidence < 1:
        yield f"confidence is {e.confidence}: it must lie between 0.5 and 1, such as 0.95"
    if not e.seeds or len(set(e.seeds)) < len(e.seeds):
        yield f"seeds is {list(e.seeds)}: give one or more different whole numbers"


def _parsed_problems(e: Experiment) -> Iterator[str]:
    """Flags with a little language of their own."""
    from evenprune import augment

    bins, problems = parse_bins(e.bin)
    yield from problems
    yield from GroupRules(bins, e.merge_below).problems(e.groups)
    yield from augment.parse(e.augment)[1]


def _names() -> Sequence[str]:
    from evenprune import methods

    return list(methods.TABLE)


def method_problems(e: Experiment) -> Iterator[str]:
    from evenprune import splits

    if len(set(e.method)) < len(e.method):
        yield f"method names one twice: {', '.join(e.method)}"
    for text in e.method:
        try:
            method = build_method(text, e)
        except (TypeError, ValueError) as error:
            yield f"method {text!r}: {error}"
        else:
            yield from [*splits.steered([method]), *splits.unknown([method])]


def build_method(text: str, e: Experiment) -> "Method":
    """A method of its name and own settings; the experiment's where it takes them and has none of its own."""
    from evenprune import methods
    from evenprune.method import FOLDS, no_such

    name, _, rest = text.partition(":")
    name = name.strip().replace("_", "-")
    if name not in methods.TABLE and name not in VARIANTS:
        raise ValueError(f"there is no such method; choose of {', '.join([*methods.TABLE, *VARIANTS])}")
    name, preset = VARIANTS.get(name, (name, {}))
    make = methods.TABLE[name]
    takes = inspect.signature(make).parameters
    shared = {"tolerance": e.tolerance or 0.0, "dual_lr": e.dual_lr, "k": e.k, "on": "validation"}
    values = {key: value for key, value in shared.items() if key in takes and value is not None}
    own = preset | dict(_settings(rest))
    there = methods.settings_of(make)
    unknown = [key for key in own if key not in there]
    if unknown:
        raise ValueError(no_such(f"{name} has no setting", unknown, there))
    if own.get("multipliers_on") == FOLDS:
        raise ValueError(
            f"multipliers_on={FOLDS!r} cross-fits, which only Python can: prune(folds=Folds(of, models)), of "
            "from folds.assign(groups, 4), models trained by fit() without each fold, as folds.py shows"
        )
    wrong = [key for key, value in own.items() if _is_flag(takes.get(key)) and not isinstance(value, bool)]
    if wrong:
        raise ValueError(f"{wrong[0]} is {own[wrong[0]]!r}; write true or false")
    return make(**values | own)


def _is_flag(parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and isinstance(parameter.default, bool)


def _settings(text: str) -> Iterator[tuple[str, Any]]:
    """dual_lr=0.1,k=20 as names and values."""
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is no setting; write name=value, several with commas")
        yield name.strip(), _value(value.strip())


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "5" as 0, 1, 2, 3, 4; "3,7" as these two; "3," as this one."""
    parts = [part.strip() for part in text.split(",")]
    try:
        numbers = [int(part) for part in parts if part]
    except ValueError:
        raise ValueError(
            f'seeds is {text!r}: write a number of runs such as "5", or seeds as "3,7"'
        ) from None
    if len(parts) > 1 or not numbers:
        return tuple(numbers)
    if numbers[0] < 1:
        raise ValueError(
            f'seeds is {text!r}, a number of runs: write at least "1"; seed {numbers[0]} is "{numbers[0]},"'
        )
    return tuple(range(numbers[0]))


def _pattern(text: str) -> tuple[int, int] | None:
    kept, _, of = text.partition(":")
    return (int(kept), int(of)) if text else None


def _optimizer(e: Experiment) -> Any:
    from torch.optim import SGD, AdamW

    return partial(SGD, lr=e.lr, momentum=e.momentum) if e.optimizer == "sgd" else partial(AdamW, lr=e.lr)


def _scheduler(e: Experiment) -> Any:
    from torch.optim.lr_scheduler import CosineAnnealingLR

    from evenprune.recipe import steps_down

    name, _, places = e.schedule.partition(":")
    at = [float(place) for place in places.split(",") if place]
    steps = partial(steps_down, at=at) if at else steps_down
    return {"steps": steps, "cosine": CosineAnnealingLR, "constant": None}[name]


BUILT_IN = {
    # Few steps (14 an epoch) and few rare samples (one error in 30 is 3.3 points): the multipliers must
    # answer at once, hence the proportional term of nuPI, and the weights must be able to follow them late.
    "digits": Experiment(
        data="digits",
        model="small_cnn",
        groups=("digit",),
        sparsity=0.97,
        method=("nft", "el-rb:dual_lr=0.005", "ceag:dual_lr=0.4,dual=nupi,kp=5,mean=detached"),
        tolerance=0.02,
        k=20,
        seeds=tuple(range(5)),
        batch_size=64,
        lr=0.02,
        schedule="steps:0.75,0.9",
        evaluate_every=3,
    )
}

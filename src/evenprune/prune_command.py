"""The commands prune and run: flags made of the fields of Experiment, and what they write."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import Field, field, fields, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from evenprune.experiment import BUILT_IN, FAST, Experiment, parse_seeds
from evenprune.tally import InputProblems

if TYPE_CHECKING:
    from evenprune.result import Result


# --- flags ---

# What prune reads its data by; a built-in experiment has data of its own.
OF_DATA = (
    "test", "bin", "merge_below", "table", "label", "path", "split", "classes", "numeric", "categorical",
    "ignore", "test_share", "image_size", "corrupt", "cache",
)  # fmt: skip
OTHER_NAMES = {"test": ["--audit"]}


SEPARATED = (
    "groups",
    "classes",
    "numeric",
    "categorical",
    "ignore",
)  # a,b or repeated: names may have commas


def _flag(of: "Field[Any]", hint: Any, *, own_defaults: bool) -> tuple[str, Any, Any]:
    """A field of Experiment as a flag. Flags that are not given are None, so that presets can fill them."""
    several = hint == tuple[str, ...]
    kind: Any = list[str] if several else str if of.name == "seeds" else hint
    names = [f"--{of.name.replace('_', '-')}", *OTHER_NAMES.get(of.name, [])]
    text = of.metadata["help"]
    if own_defaults and of.default not in ("", (), None, False):
        default: Any = of.default
        shown = "1" if of.name == "seeds" else " ".join(default) if several else str(default)
        text = f"{text.removesuffix('.')} ({shown})."
    metavar = None if kind is bool else of.metadata["metavar"]
    option = typer.Option(*names, help=text, metavar=metavar)
    return of.name, Annotated[kind | None, option], field(default=None)


def _flags(name: str, first: tuple[str, Any], *, without: set[str], own_defaults: bool) -> type:
    hints = get_type_hints(Experiment)
    options = [
        _flag(f, hints[f.name], own_defaults=own_defaults)
        for f in fields(Experiment)
        if f.name not in without
    ]
    return make_dataclass(name, [(*first, field(default=None)), *options], frozen=True)


def _argument(metavar: str, text: str) -> Any:
    return Annotated[str | None, typer.Argument(metavar=metavar, show_default=False, help=text)]


PruneFlags = _flags(
    "PruneFlags",
    ("model", _argument("FILE.py:FUNCTION", "Returns the trained dense model; or a built-in architecture.")),
    without={"model"},
    own_defaults=True,
)
RunFlags = _flags(
    "RunFlags",
    ("experiment", _argument("NAME", f"A built-in experiment: {', '.join(BUILT_IN)}.")),
    without={"model", "data", "weights", "groups", *OF_DATA},
    own_defaults=False,
)


def experiment_of(flags: Any) -> Experiment:
    """The experiment that the flags ask for, or everything that is wrong with them."""
    given = {name: value for name, value in vars(flags).items() if value is not None}
    name, problems, start = given.pop("experiment", None), list[str](), Experiment()
    if "experiment" in vars(flags):
        said = f"{name} is no built-in experiment" if name else "experiment is missing"
        problems = [] if name in BUILT_IN else [f"{said}; there are: {', '.join(BUILT_IN)}"]
        start = BUILT_IN.get(name, next(iter(BUILT_IN.values())))
    values = dict[str, Any]()
    for key, value in given.items():
        try:
            values[key] = _value(key, value)
        except ValueError as error:
            problems.append(str(error))
    wanted = replace(start, **values)
    problems += wanted.problems()
    if problems:
        raise InputProblems(problems)
    return wanted if wanted.out else replace(wanted, out=str(Path("runs") / wanted.id))


def _value(name: str, value: Any) -> Any:
    if (name in SEPARATED and len(value) == 1) or name in ("augment", "without"):
        return tuple(part.strip() for text in value for part in text.split(",") if part.strip())
    return parse_seeds(value) if name == "seeds" else tuple(value) if isinstance(value, list) else value


# --- work ---

HELDOUT_ROWS = "--heldout-share 0.2, or mark samples as validation in the column of the splits"
# What messages of the library say, as a user of the command line has it.
AS_FLAGS = {
    **{f"Recipe({name.replace('-', '_')}=False)": f"--without {name}" for name in FAST},
    "recipe.batch_size": "--batch-size",
    "recipe.fleet_size =": "--fleet",
    "recipe.clip_norm": "--clip-norm",
    "Train longer, or lower recipe.pruning_epochs": "Raise --epochs, or lower --pruning-epochs",
    "Lower pruning_epochs or raise epochs": "Lower --pruning-epochs or raise --epochs",
    "Raise epochs or lower pruning_epochs": "Raise --epochs or lower --pruning-epochs",
    "methods.fairgrape(fast=True)": "--method fairgrape-fast",
    "leave those layers out with exclude": "leave those layers out with --exclude",
    "recipe.pruning_epochs": "--pruning-epochs",
    ": with another recipe.evaluate_batch, data_on_device or graph the same call goes on from there": "",
    "needs heldout=…, samples": f"needs a held-out split ({HELDOUT_ROWS}), samples",
    "there is none: give prune(heldout=…)": f"there is none: {HELDOUT_ROWS}",
    "give it as heldout=…, and name that": f"{HELDOUT_ROWS}, and name heldout",
    "give others as audit=… (or test=…)": "give others with --test, or as test in the column of the splits",
    "give these as audit=…": "give these with --test, or as test in the column of the splits",
    ", samples given as heldout=…": f" ({HELDOUT_ROWS})",
    ", or 'folds', the training samples by cross-fitting": "",
    "give others as heldout=…": f"give others: {HELDOUT_ROWS}.",
    "erge groups, lower k, or use the table estimator": "erge groups (--merge-below), lower --k, or use "
    "--method ceag:estimator=table",
}
# The same where an experiment is built in, whose data nobody can change.
OF_GIVEN_DATA = {
    ", or mark samples as validation in the column of the splits": "",
    "give these with --test, or as test in the column of the splits": "in Python, give these as audit=…",
    "Merge groups (--merge-below), lower --k": "Lower --k",
    "merge groups (--merge-below), lower --k": "lower --k",
}


@contextlib.contextmanager
def _refusing(built_in: bool) -> Iterator[None]:
    """What goes wrong in practice becomes one plain message; a defect of ours keeps its trace."""
    from evenprune.checkpoint import CheckpointError, DifferentExperiment
    from evenprune.replay import Unsupported
    from evenprune.training import NoRoom, NotFinite

    try:
        yield
    except InputProblems as error:
        raise InputProblems([in_flags(problem, built_in) for problem in error.problems]) from error
    except (
        *(CheckpointError, DifferentExperiment, NoRoom, NotFinite, Unsupported),
        *(OSError, ImportError),
    ) as error:
        raise InputProblems([in_flags(str(error), built_in)]) from error


def in_flags(problem: str, built_in: bool = False) -> str:
    words = AS_FLAGS | OF_GIVEN_DATA if built_in else AS_FLAGS
    for said, flag in words.items():
        problem = problem.replace(said, flag)
    return problem


@contextlib.contextmanager
def _telling(tell: Callable[[str], None], built_in: bool) -> Iterator[list[str]]:
    """Warnings for users, told as they come, and gathered; all others are silent."""
    notes: list[str] = []

    def hear(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if category is UserWarning:
            notes.append(in_flags(str(message), built_in))
            tell(notes[-1])

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = hear
        yield notes


def conducted(flags: Any, tell: Callable[[str], None] = lambda _: None) -> tuple["Result", Path, list[str]]:
    """Prune as the flags say and write the results: the result, its folder, and the notes on the way.

    tell: hears each note at once; those on the data come before the training.
    """
    _need_torch()
    built_in = "experiment" in vars(flags)
    with _refusing(built_in), _telling(tell, built_in) as notes:
        wanted = experiment_of(flags)
        result = conduct(wanted, built_in=built_in)
        write(result, Path(wanted.out))
    return result, Path(wanted.out), notes


def _need_torch() -> None:
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise InputProblems([f"pruning needs torch ({error}): pip install 'evenprune[torch]'"]) from None


def conduct(wanted: Experiment, *, built_in: bool) -> "Result":
    """The experiment, from its data to its result; in a folder that holds it already, at once.

    built_in: its data is the name of a built-in experiment; else the path of the user's own.
    """
    from evenprune import built_in as experiments
    from evenprune.pruning import prune
    from evenprune.trackers import ProgressBar

    out, hooks = Path(wanted.out), [ProgressBar()]
    if built_in:
        model, splits = experiments.untrained_and_data(wanted.data, heldout_share=wanted.heldout_share)
    else:
        model, splits = _model_and_data(wanted)
    device = _device(wanted.device)
    groups = wanted.groups if built_in else list(splits["train"][2])  # merged groups are one column
    asked = {
        "groups": groups,
        "sparsity": wanted.sparsity,
        "method": wanted.methods(),
        "seeds": wanted.seeds,
        "recipe": wanted.recipe(),
        "folder": out,
        "tolerance": wanted.tolerance,
        "confidence": wanted.confidence,
        "device": device,
        "select": wanted.select or None,
    }
    biased = _bias_problems(wanted, splits, groups) if wanted.class_bias else []
    if built_in or biased:  # all that is wrong is told before the dense model trains
        _refuse(model, splits, asked, biased)
    if built_in:
        model = experiments.trained(model, splits, folder=out, hooks=hooks)
    result = prune(model, **splits, **asked, hooks=hooks)
    if wanted.class_bias:
        result = result.with_class_bias(device=device)
    if wanted.diagnostics:
        result = result.with_diagnostics(model.to(device))
    title = f"{wanted.id}: {wanted.sparsity * 100:g} % sparse"
    return replace(result, title=title, wording=partial(in_flags, built_in=built_in))


def _bias_problems(wanted: Experiment, given: dict[str, Any], groups: Any) -> list[str]:
    """Why there can be no class bias; of samples that cannot be read prune() tells everything."""
    from evenprune import biased_runs, samples, splits

    named, _ = splits.gathered(given["train"], {name: given[name] for name in given if name != "train"})
    try:
        needed = any(method.needs_groups for method in wanted.methods())
        return biased_runs.problems(samples.read(named, groups, needs_groups=needed))
    except InputProblems:
        return []


def _refuse(model: Any, given: dict[str, Any], asked: dict[str, Any], biased: list[str]) -> None:
    """An error if anything is wrong with what prune() is asked, or with a class bias."""
    from evenprune.pruning import prepared

    problems = biased
    try:
        prepared(model, given, **asked)
    except InputProblems as error:
        problems = [*error.problems, *biased]
    if problems:
        raise InputProblems(problems)


def _model_and_data(wanted: Experiment) -> tuple[Any, dict[str, Any]]:
    from evenprune import data_source

    problems: list[str] = []
    splits: dict[str, Any] = {}
    model = None
    try:
        splits = dict(data_source.load(wanted))
    except InputProblems as error:
        problems += error.problems
    try:
        model = _model(wanted, splits)
    except InputProblems as error:
        problems += error.problems
    problems += _unfit(wanted, splits)
    if problems:
        raise InputProblems(problems)
    return model, splits


def _model(wanted: Experiment, splits: dict[str, Any]) -> Any:
    """The dense model; nothing where it is to be built for data that could not be read."""
    from evenprune import architectures, data_source, model_file

    if wanted.model not in architectures.BUILDERS:
        return model_file.load(wanted.model, wanted.weights)
    if not wanted.weights:
        raise InputProblems([f"{wanted.model} is an architecture: give its trained weights with --weights"])
    if not splits:
        return None
    model = architectures.build(wanted.model, *data_source.shape_and_classes(splits))
    model_file.load_weights(model, wanted.weights)
    return model


def _unfit(wanted: Experiment, splits: dict[str, Any]) -> list[str]:
    """Why the images cannot be changed as --augment says; of data that could not be read, nothing."""
    from evenprune import augment

    return augment.unfit(augment.parse(wanted.augment)[0], splits["train"][0]) if splits else []


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.zeros(1, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InputProblems([f"device {name!r} cannot be used: {reason}"]) from None


def write(result: "Result", folder: Path) -> None:
    """The comparison, an audit per run and split, and the pruned weights of each run."""
    from safetensors.torch import save

    from evenprune import atomic
    from evenprune.trackers import name_of

    for part in ("audits", "models"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    pages = audit_pages(result)
    for ending in ("html", "json", "txt"):
        result.save(folder / f"comparison.{ending}", pages=pages)
    for place, (name, run) in enumerate(zip(result.names, result.runs, strict=True)):
        for split, audit in result.audits[name].items():
            for ending in (".html", ".json"):
                audit.save((folder / pages[name][split]).with_suffix(ending))
        weights = {key: tensor.contiguous() for key, tensor in result.models[name].state_dict().items()}
        atomic.write_bytes(folder / "models" / f"{name_of(place, run)}.safetensors", save(weights))


def audit_pages(result: "Result") -> dict[str, dict[str, str]]:
    """Where the page of each audit lies, from the folder of the results: by run and split."""
    from evenprune.trackers import name_of

    return {
        name: {split: f"audits/{name_of(place, run)}-{split}.html" for split in result.audits[name]}
        for place, (name, run) in enumerate(zip(result.names, result.runs, strict=True))
    }


def telling_runs(result: "Result") -> dict[str, str]:
    """Of each method the run whose audit tells most: the chosen one, else that of the strictest audit."""
    from evenprune.result import strictest
    from evenprune.run_names import method_labels

    of_method: dict[str, list[str]] = {}
    for label, name in zip(method_labels(result.runs), result.names, strict=True):
        of_method.setdefault(label, []).append(name)
    chosen = None if result.choice is None else result.choice.name
    return {
        label: chosen if chosen in names else strictest(result.audits[name]["test"] for name in names).model
        for label, names in of_method.items()
    }


def report(result: "Result", folder: Path) -> str:
    """What the screen shows: the table, the audit that decides, and where everything lies."""
    page = (folder / "comparison.html").resolve()
    shown, heading = result.worst, f"The strictest of the {len(result.runs)} test audits is that of"
    if result.select is not None:
        shown, heading = result.audit, "The test audit of the run that was chosen,"
    head = f"{heading} {shown.model}:\n\n" if len(result.runs) > 1 else ""
    pages, runs = audit_pages(result), telling_runs(result)
    links = [f"  {name}: {(folder / pages[name]['test']).resolve().as_uri()}" for name in runs.values()]
    each = (
        "the strictest of each method"
        if result.select is None
        else "the chosen, of other methods the strictest"
    )
    which = f" ({each})" if len(result.runs) > len(runs) else ""
    audits = "\n".join([f"Audit pages on test data{which}; comparison.html links all:", *links])
    return f"{result}\n\n{head}{shown}\n{audits}\nPage: {page}\n      {page.as_uri()}\n"

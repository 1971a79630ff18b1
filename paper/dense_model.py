"""The dense model that every run of a table starts from: trained, kept as a file of weights, described."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from evenprune import atomic, methods
from evenprune.paper_results import Task
from evenprune.recipe import Recipe, Run
from evenprune.tally import InputProblems
from paper import results_file, runner
from paper.results_file import SPLITS
from paper.runner import Start, Trained, Where

SAME = 0.002  # weights in half precision must give these accuracies again, up to so much


def cosine(optimizer: Optimizer, total: int) -> CosineAnnealingLR:
    """From the first learning rate down to zero."""
    return CosineAnnealingLR(optimizer, total)


def train_dense(untrained: Start, recipe: Recipe, where: Where, *, seed: int) -> Trained:
    """From scratch, with the same loop as everything else: no constraints, nothing pruned."""
    run = Run(method=methods.nft(), sparsity=0.0, seed=seed)
    return runner.fit_fleet(untrained, [run], recipe, where, kind="dense")


def is_trained(weights: Path, tasks: Sequence[Task], where: Where) -> bool:
    """Whether weights and results are there; refused where the results have runs of weights that are not."""
    held = results_file.read(where.results)
    if weights.exists() and all(results_file.dense_of(held, task) is not None for task in tasks):
        for task in tasks:
            refuse_other_weights(held, task, weights, where.results)
        where.say(f"The dense model is trained: {weights}. Remove that file to train it again.")
        return True
    runs = [run for run in held["runs"] if results_file.task_of(run) in tasks]
    if runs:
        other = f"{where.results} has {len(runs)} runs of a dense model whose weights are not"
        raise InputProblems([f"{other} {weights}; put them back, or give --results another file"])
    return False


# --- the file of weights ---


def write_weights(path: Path, model: nn.Module, *, half: bool = False) -> None:
    """As safetensors. half: matrices and filters in float16; biases and all of the norms as they are."""
    from safetensors.torch import save

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: _halved(t) if half else t for name, t in model.state_dict().items()}
    atomic.write_bytes(path, save({name: t.contiguous() for name, t in tensors.items()}))


def _halved(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.ndim > 1 and tensor.is_floating_point() else tensor


def load_weights(path: Path, model: nn.Module) -> nn.Module:
    """The model with the weights of a safetensors file, in its own precision and in evaluation mode."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.exists():
        raise InputProblems([f"there are no dense weights in {path}; train them first, with `dense`"])
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:  # no such file format, or another architecture
        text = " ".join(str(error).split())[:400]
        raise InputProblems([f"the weights in {path} do not fit {type(model).__name__}: {text}"]) from error
    return model.eval()


def write_half(
    path: Path,
    trained: Trained,
    measure: Callable[[], Start],
    where: Where,
    *,
    splits: Sequence[str] = SPLITS,
) -> Start:
    """In half precision if the accuracies stay, else in full; returns what `measure` finds of the file."""
    (fitted,) = trained.fitted
    write_weights(path, fitted.model, half=True)
    start = measure()
    before, after = fitted.predictions, start.answers
    moves = {s: float(after[s].correct.double().mean() - before[s].correct.double().mean()) for s in splits}
    if all(abs(move) <= SAME for move in moves.values()):
        return start
    told = ", ".join(f"{100 * move:+.2f} points on {split} data" for split, move in moves.items())
    where.say(f"Half precision would change the accuracy ({told}): the weights are kept in full.")
    write_weights(path, fitted.model)
    return measure()


def precision_of(path: Path) -> str:
    """Of the matrices and filters in a file of weights."""
    from safetensors.torch import load_file

    return "float16" if any(t.dtype == torch.float16 for t in load_file(path).values()) else "float32"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refuse_other_weights(document: Mapping[str, Any], task: Task, weights: Path, results: Path) -> None:
    """All runs of a task in a results file start from one dense model."""
    held = results_file.dense_of(dict(document), task)
    if held is not None and held["sha256"] != digest(weights):
        raise InputProblems(
            [f"{results} is of another dense model than {weights}; give another file of weights or results"]
        )


# --- what the results file says ---


def dense_document(
    start: Start, trained: Trained, weights: Path, settings: Mapping[str, Any], where: Where
) -> dict[str, Any]:
    """What the results file says of the dense model."""
    measured = {split: runner.scores_of(start, start.answers[split], split) for split in SPLITS}
    return {
        "weights": weights.name,
        "sha256": digest(weights),
        **start.facts,
        **{split: {"accuracy": measured[split]["accuracy"]} for split in SPLITS},
        "group_accuracy": {split: measured[split]["group_accuracy"] for split in SPLITS},
        "groups": list(start.names),
        "recipe": dict(settings),
        "seconds": round(trained.seconds, 3),
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }


def sentence(document: Mapping[str, Any], weights: Path) -> str:
    return (
        f"Dense model: {document['train']['accuracy']:.2%} train, {document['test']['accuracy']:.2%} test, "
        f"{document['seconds']:.0f} s; {weights}"
    )

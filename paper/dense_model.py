"""The dense model that every run of a table starts from: trained, kept as a file of weights, described."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from evenprune import atomic, methods
from evenprune.recipe import Recipe, Run
from evenprune.tally import InputProblems
from paper import runner
from paper.results_file import SPLITS
from paper.runner import Start, Trained, Where


def cosine(optimizer: Optimizer, total: int) -> CosineAnnealingLR:
    """From the first learning rate down to zero."""
    return CosineAnnealingLR(optimizer, total)


def train_dense(untrained: Start, recipe: Recipe, where: Where, *, seed: int) -> Trained:
    """From scratch, with the same loop as everything else: no constraints, nothing pruned."""
    run = Run(method=methods.nft(), sparsity=0.0, seed=seed)
    return runner.fit_fleet(untrained, [run], recipe, where, kind="dense")


def write_weights(path: Path, model: nn.Module) -> None:
    from safetensors.torch import save

    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_bytes(path, save({name: t.contiguous() for name, t in model.state_dict().items()}))


def load_weights(path: Path, model: nn.Module) -> nn.Module:
    """The model with the weights of a safetensors file, in evaluation mode."""
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


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refuse_other_weights(document: Mapping[str, Any], weights: Path, results: Path) -> None:
    """All runs of a results file start from one dense model."""
    held = document.get("dense", {}).get("sha256")
    if held is not None and held != digest(weights):
        raise InputProblems(
            [f"{results} is of another dense model than {weights}; give another file of weights or results"]
        )


def dense_document(
    start: Start, trained: Trained, weights: Path, settings: Mapping[str, Any], where: Where
) -> dict[str, Any]:
    """What the results file says of the dense model."""
    measured = {split: runner.scores_of(start, start.answers[split], split) for split in SPLITS}
    return {
        "weights": weights.name,
        "sha256": digest(weights),
        **{split: {"accuracy": measured[split]["accuracy"]} for split in SPLITS},
        "group_accuracy": {split: measured[split]["group_accuracy"] for split in SPLITS},
        "groups": list(start.names),
        "recipe": dict(settings),
        "seconds": round(trained.seconds, 3),
        "versions": runner.versions(where.device),
        "commit": where.commit,
    }

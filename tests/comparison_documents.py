"""Realistic comparison documents for the tests of the page: any number of methods, seeds, groups and epochs.

Right and wrong answers are drawn, so that accuracies, gaps and audits of a run agree with each other; the
limits are plain normal ones, as in `audit_documents`.
"""

from statistics import NormalDist
from typing import Any

import numpy as np

from tests import audit_documents

TOLERANCE, CONFIDENCE = audit_documents.TOLERANCE, audit_documents.CONFIDENCE
SPLITS = {"train": 140, "test": 48}  # samples of a common group
RARE = 30  # training samples of the two rare groups, which pruning harms
# method -> extra share of a rare group's answers that break, on the training and on the test split
HARMS = {"NFT": (0.20, 0.19), "EL+RB": (0.09, 0.15), "CEAG": (0.0, 0.09)}
SIX = {**HARMS, "CEAG no RB": (0.05, 0.12), "CELG": (0.04, 0.1), "equalized": (0.03, 0.12)}


def document(
    groups: int = 10,
    *,
    harms: dict[str, tuple[float, float]] | None = None,
    seeds: int = 5,
    epochs: int = 60,
    named: list[str] | None = None,
    seed: int = 0,
    heldout: bool = False,
) -> dict[str, Any]:
    """A comparison of the methods in `harms`; the last two groups are the rare ones.

    heldout: the test samples of another draw are held out, and the multipliers of CEAG follow them.
    """
    if heldout:
        return _with_heldout(
            *(
                document(groups, harms=harms, seeds=seeds, epochs=epochs, named=named, seed=s)
                for s in (seed, seed + 1)
            )
        )
    names = named if named is not None else _names(groups)
    rng = np.random.default_rng(seed)
    samples = {split: _sizes(split, size, len(names), rng) for split, size in SPLITS.items()}
    dense = {"train": np.full(len(names), 0.998), "test": rng.uniform(0.93, 0.99, len(names))}
    right = {split: np.round(samples[split] * dense[split]).astype(int) for split in SPLITS}
    methods = [
        _method(name, harm, names=names, samples=samples, right=right, seeds=seeds, epochs=epochs, rng=rng)
        for name, harm in (harms or HARMS).items()
    ]
    return {
        "schema": "evenprune.comparison/1", "title": "Digits 8×8, 97 % sparse", "model": "small_cnn",
        "sparsity": 0.97, "tolerance": TOLERANCE, "confidence": CONFIDENCE, "groups": names,
        "samples": {split: samples[split].tolist() for split in SPLITS},
        "dense": {
            split: {
                "accuracy": float(right[split].sum() / samples[split].sum()),
                "group_accuracy": (right[split] / samples[split]).tolist(),
            }
            for split in SPLITS
        },
        "epochs": epochs, "pruning_epochs": epochs // 4, "seconds": 9.1,
        "parameters": {"all": 3034, "left": 464}, "methods": methods,
    }  # fmt: skip


def _with_heldout(found: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    for key in ("samples", "dense"):
        found[key] = {"train": found[key]["train"], "heldout": other[key]["test"], "test": found[key]["test"]}
    for method, twin in zip(found["methods"], other["methods"], strict=True):
        if method["name"] == "CEAG":
            method["settings"]["multipliers_on"] = "heldout"
        for run, same in zip(method["runs"], twin["runs"], strict=True):
            run["heldout"], run["audits"]["heldout"] = same["test"], same["audits"]["test"]
            for row, its in zip(run["history"], same["history"], strict=True):
                row["heldout_max_excess_gap"] = its["test_max_excess_gap"]
    return found


def _names(groups: int) -> list[str]:
    return [str(i) for i in range(groups)] if groups <= 10 else [f"class {i:03d}" for i in range(groups)]


def _sizes(split: str, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    sizes = rng.integers(int(size * 0.9), int(size * 1.1), count)
    sizes[-2:] = RARE if split == "train" else sizes[-2:]
    return sizes


def _method(
    name: str,
    harm: tuple[float, float],
    *,
    names: list[str],
    samples: dict[str, np.ndarray],
    right: dict[str, np.ndarray],
    seeds: int,
    epochs: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    plain = name.upper().startswith("NFT")
    settings = {} if plain else {"tolerance": TOLERANCE, "dual_lr": 0.05, "k": 20}
    runs = []
    for seed in range(seeds):
        audits = {
            split: _audit(names, samples[split], right[split], harm[place], model=name, rng=rng)
            for place, split in enumerate(SPLITS)
        }
        results = {split: _result(audit) for split, audit in audits.items()}
        history = _history(results, len(names), epochs, plain, rng)
        runs.append({"seed": seed, "sparsity": 0.97, **results, "history": history, "audits": audits})
    return {"name": name, "settings": settings, "runs": runs}


def _audit(
    names: list[str],
    samples: np.ndarray,
    right: np.ndarray,
    harm: float,
    *,
    model: str,
    rng: np.random.Generator,
) -> dict[str, Any]:
    count = len(names)
    extra = np.zeros(count)
    extra[-2:] = (harm, harm / 3)
    usual = 0.004 if samples.mean() > 100 else 0.012
    broke = rng.binomial(right, np.minimum(usual + extra, 1))
    fixed = rng.binomial(samples - right, 0.3)
    gap = (broke - fixed) / samples
    excess = gap - (samples @ gap) / samples.sum()
    error = np.sqrt(((broke + fixed + 1) / samples - gap**2) / samples)
    one, many = NormalDist().inv_cdf(CONFIDENCE), NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / count)
    both = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / count / 2)
    columns = {
        "samples": samples, "dense": right / samples, "pruned": right / samples - gap, "gap": gap,
        "excess_gap": excess, "lower": excess - both * error, "upper": excess + both * error,
        "test_lower": excess - many * error, "test_upper": excess + one * error,
        "gap_lower": gap - both * error, "gap_upper": gap + both * error, "broke": broke, "fixed": fixed,
        "disagreement": (broke + fixed) / samples, "violates": excess - many * error > TOLERANCE,
        "fell": gap - both * error > 0, "tiny": samples < 10,
    }  # fmt: skip
    rows = [
        {"group": name, "attributes": {"digit": name}, "samples_needed": None}
        | {key: values[i].item() for key, values in columns.items()}
        for i, name in enumerate(names)
    ]
    return audit_documents._summary(rows, model=model, measure="accuracy", rng=rng) | {"notes": []}


def _result(audit: dict[str, Any]) -> dict[str, Any]:
    groups = audit["groups"]
    return {
        "accuracy": audit["overall"]["pruned"],
        "max_excess_gap": audit["max_excess_gap"]["estimate"],
        "pairwise_disparity": audit["pairwise_disparity"],
        "group_accuracy": [group["pruned"] for group in groups],
        "excess_gaps": [group["excess_gap"] for group in groups],
        "verdict": audit["verdict"],
    }


def _history(
    results: dict[str, dict[str, Any]], groups: int, epochs: int, plain: bool, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Harm rises while pruning goes on, then settles to what the run ends with; multipliers follow it."""
    pruning = max(1, epochs // 4)
    peak = rng.uniform(0.2, 0.35)
    multipliers = np.zeros(groups)
    needs = np.maximum(np.array(results["train"]["excess_gaps"]), 0) + rng.exponential(0.01, groups)
    needs[-2:] += (0.5, 0.2)
    rows = []
    for epoch in range(epochs):
        left = 0.0 if epoch == epochs - 1 else max(0.0, 1 - max(0, epoch - pruning) / (0.5 * epochs)) ** 2
        grown = min(1.0, (epoch + 1) / pruning) ** 3
        noise = 0.0 if epoch == epochs - 1 else 0.012 * rng.standard_normal() * grown

        def gap(split: str, left: float = left, grown: float = grown, noise: float = noise) -> float:
            final = results[split]["max_excess_gap"]
            return float(max(0.002, grown * (final + (peak - final) * left * 0.8) + noise))

        if epoch >= pruning:
            multipliers = multipliers + 0.12 * (needs * (0.3 + left) - 0.3 * multipliers)
        rows.append({
            "epoch": epoch, "sparsity": 0.97 * (1 - (1 - min(1.0, (epoch + 1) / pruning)) ** 3),
            "accuracy": results["train"]["accuracy"] - 0.2 * left * grown,
            "max_excess_gap": gap("train"), "test_max_excess_gap": gap("test"),
            "multipliers": [] if plain else multipliers.tolist(),
        })  # fmt: skip
    return rows

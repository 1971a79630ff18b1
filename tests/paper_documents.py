"""Results files as the paper's experiments write them, made up: every cell, counts and figures that agree."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from evenprune.paper_printed import Cell, Place, printed

VERSIONS = {"python": "3.12.3", "torch": "2.11.0", "evenprune": "0.1.0", "device": "NVIDIA H200"}
ANIMALS = ("apple", "aquarium fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle")


def names(groups: int) -> list[str]:
    return [ANIMALS[i] if i < len(ANIMALS) else f"class {i:02d}" for i in range(groups)]


def rng_of(*words: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(words).encode()))


def counts(rng: np.random.Generator, n: np.ndarray, gap: float, q: float, harm: float) -> dict[str, Any]:
    """Changed samples of each group: overall gap and disagreement as asked, some groups harmed more."""
    gaps = gap + harm * rng.standard_normal(n.size) * 0.4
    broke = rng.binomial(n, np.clip((q + gaps) / 2, 0, 0.5))
    fixed = rng.binomial(n, np.clip((q - gaps) / 2, 0, 0.5))
    return {"samples": n.tolist(), "broke": broke.tolist(), "fixed": fixed.tolist()}


def figures(changes: dict[str, list[int]], dense_right: np.ndarray) -> tuple[dict[str, float], list[float]]:
    """Accuracy, max ψ, Ψ_PW and the groups' accuracies, from the counts."""
    n, b, c = (np.array(changes[key]) for key in ("samples", "broke", "fixed"))
    b = np.minimum(b, dense_right)
    c = np.minimum(c, n - dense_right)
    changes |= {"broke": b.tolist(), "fixed": c.tolist()}
    right = dense_right - b + c
    excess = (b - c) / n - (b - c).sum() / n.sum()
    whole = {
        "accuracy": right.sum() / n.sum(),
        "max_excess_gap": excess.max(),
        "pairwise_disparity": np.ptp(excess),
    }
    return {key: float(value) for key, value in whole.items()}, (right / n).tolist()


def dense_right(groups: int, split: str) -> np.ndarray:
    level, n = (0.999, 500) if split == "train" else (0.726, 100)
    spread = 0.001 if split == "train" else 0.12
    share = np.clip(level + spread * rng_of("dense", split).standard_normal(groups), 0.3, 1)
    return np.minimum(np.rint(n * share), n - (split == "train")).astype(int)


def run(place: Place, cell: Cell, seed: int, *, groups: int = 100, **changed: Any) -> dict[str, Any]:
    """A run of a cell of the paper, near what the paper prints; `changed` replaces fields."""
    task, sparsity = place
    rng = rng_of(task, sparsity, cell.method, seed, sorted(changed.items()))
    made: dict[str, Any] = {"changes": {}, "group_accuracy": {}}
    for split, size in (("train", 500), ("test", 100)):
        right = dense_right(groups, split)
        gap = right.sum() / size / groups - cell.figures[split]["accuracy"].mean
        harm = cell.figures[split]["max_excess_gap"].mean / 2 if split == "train" else 0.02
        q = max(abs(gap), 0.004) if split == "train" else 0.25
        changes = counts(rng, np.full(groups, size), gap, q, harm)
        made[split], made["group_accuracy"][split] = figures(changes, right)
        made["changes"][split] = changes
    setting, ceag = printed().settings[place], cell.method.startswith("CEAG")
    steps = {"EL": 1e-5, "EL + RB": 1e-5}
    rings = {"CEAG": 40, "EL + RB": 40, "CEAG (no RB)": 0}
    return {
        "dataset": task.dataset,
        "target": task.target,
        "group": task.group,
        "method": cell.method,
        "sparsity": sparsity,
        "seed": seed,
        "tolerance": setting.tolerance if ceag else None,
        "dual_lr": setting.dual_lr if ceag else steps.get(cell.method),
        "buffer": rings.get(cell.method),
        **made,
        "kept_epoch": 59,
        "seconds": round(21.0 + rng.random(), 2),
        "fleet": 30,
        "negative_weights": int(rng.integers(0, 1000)) if cell.method.startswith("EL") else 0,
        "multiplier_sum": float(rng.random()) if cell.method != "NFT" else None,
        "versions": VERSIONS,
        "commit": "abc1234",
        **changed,
    }


def dense(groups: int = 100, **task: str) -> dict[str, Any]:
    right = {split: dense_right(groups, split) for split in ("train", "test")}
    size = {"train": 500, "test": 100}
    return {
        **task,
        "weights": "cifar100_resnet56.safetensors",
        **{s: {"accuracy": float(right[s].mean() / size[s])} for s in right},
        "group_accuracy": {s: (right[s] / size[s]).tolist() for s in right},
        "groups": names(groups),
        "recipe": {"epochs": 200, "lr": 0.1},
        "seconds": 512.0,
        "versions": VERSIONS,
        "commit": "abc1234",
    }


def places(dataset: str = "cifar100") -> list[Place]:
    return [place for place in printed().cells if place[0].dataset == dataset]


def document(*, seeds: Sequence[int] = range(5), groups: int = 100, extras: bool = True) -> dict[str, Any]:
    """CIFAR-100: every cell, and what the other tables need."""
    cells = [(place, cell) for place in places() for cell in printed().cells[place]]
    runs = [run(place, cell, seed, groups=groups) for place, cell in cells for seed in seeds]
    if extras:
        runs += [more for seed in seeds for more in _extras(seed, groups)]
    timing = {"method": "NFT", "sparsity": 0.95, "fleet": 1, "epochs": 6, "seconds": 9.0}
    timing |= {"seconds_per_60_epochs": 70.5, "versions": VERSIONS, "commit": None}
    return {"runs": runs, "dense": dense(groups), "timings": [timing] if extras else []}


def faces(*, seeds: Sequence[int] = range(3)) -> dict[str, Any]:
    """UTKFace: the tasks by race, several tolerances, one dense model a task."""
    of = {"race": 5, "race x gender": 10}
    wanted = [place for place in places("utkface") if place[0].target == "race"]
    runs = [
        run(place, cell, seed, groups=of[place[0].group])
        for place in wanted
        for cell in printed().cells[place]
        for seed in seeds
    ]
    place = next(p for p in wanted if p[0].group == "race" and p[1] == 0.925)
    ceag = next(cell for cell in printed().cells[place] if cell.method == "CEAG")
    runs += [run(place, ceag, seed, groups=5, tolerance=t) for t in (0.0, 0.005, 0.015) for seed in seeds]
    models = [dense(size, dataset="utkface", target="race", group=group) for group, size in of.items()]
    return {"runs": runs, "dense": models, "note": "Images of 128 px; the paper used 200."}


def _extras(seed: int, groups: int) -> list[dict[str, Any]]:
    place = places()[-1]
    by_name = {cell.method: cell for cell in printed().cells[place]}
    ceag = by_name["CEAG"]
    found = [run(place, ceag, seed, groups=groups, buffer=k) for k in (20, 60, 80)]
    found.append(run(place, ceag, seed, groups=groups, method="CEAG (table)", buffer=None))
    if seed == 0:
        found.append(run(place, ceag, seed, groups=groups, method="PW", dual_lr=0.01))
        alone = {"fleet": 1, "seconds": 71.5}
        found += [run(place, by_name[m], seed, groups=groups, **alone) for m in ("NFT", "CEAG")]
    return found


def variants(seeds: Sequence[int] = range(3), groups: int = 8) -> dict[str, dict[str, Any]]:
    """Files of the folder of variants: plain and fast loops of 8 epochs at 92.5 %, another decay at 95 %."""
    middle, hard = places()[1], places()[2]
    ceag = next(cell for cell in printed().cells[middle] if cell.method == "CEAG")
    short = {
        f"cifar100_{name}_8_epochs.json": {
            "runs": [run(middle, ceag, s, groups=groups, recipe=name, epochs=8, fleet=1) for s in seeds]
        }
        for name in ("plain", "fast")
    }
    kept = [cell for cell in printed().cells[hard] if cell.method in ("NFT", "EL + RB", "CEAG")]
    decay = [
        run(hard, cell, seed, groups=groups, recipe="decay_last", epochs=60, fleet=9)
        for cell in kept
        for seed in seeds
    ]
    return {"cifar100_decay_last.json": {"runs": decay}, **short}


def traces(length: int = 3510) -> dict[str, Any]:
    """Multipliers of one class with and without buffer, and one that grows on and on."""
    made = []
    time = np.arange(length) / length
    for method, buffer, noise in (("CEAG", 40, 0.002), ("CEAG (no RB)", 0, 0.012), ("PW", 40, 0.004)):
        for seed in range(2):
            rng = rng_of("trace", method, seed)
            smooth = 3.0 * time if method == "PW" else 0.5 * (1 - np.exp(-9 * time)) * (1 - 0.4 * time)
            walk = np.maximum(smooth + noise * np.cumsum(rng.standard_normal(length)) / 3, 0)
            made.append({
                "method": method, "sparsity": 0.9, "seed": seed, "buffer": buffer, "tolerance": 0.01,
                "dual_lr": 0.002, "steps_per_epoch": 390, "first_epoch": 15, "stride": 5,
                "group": None if method == "PW" else "beaver", "place": None if method == "PW" else 4,
                "multiplier": np.round(walk, 5).tolist(),
                "pairwise_disparity": [None] * 15 + [0.12 - 0.001 * i for i in range(45)],
                "max_excess_gap": [None] * 15 + [0.06 * 0.93**i for i in range(45)],
            })  # fmt: skip
    return {"traces": made}

"""Realistic audit documents for the tests of the outputs: any number of groups and models, any verdict.

The counts are drawn, the limits are plain normal ones: good to look at, not the audit's own statistics.
"""

from statistics import NormalDist
from typing import Any

import numpy as np

TOLERANCE, CONFIDENCE = 0.02, 0.95
RACES = ("Asian", "Black", "Indian", "Latino", "White", "Others")
HOSTILE_NAMES = (
    "<script>document.title='owned'</script>",
    "</script><img src=x onerror=\"document.title='owned'\">",
    "=cmd|'/c calc'!A1()",
    "a very long name " * 30,
    "نساء × فوق الستين",
    "👩🏽‍🔬 × 日本語",
    "pipe | back\\slash `tick` *star* [link](https://example.org)",
    "two\nlines\u2028and \x1b[31mred\x1b[0m \u202eleft",
    "&lt;b&gt; @@DATA@@ __proto__",
    "lone \udc80 surrogate",
)
# size of a group, harm of the two groups that are harmed
PLANS = {"pass": (20_000, 0.0), "fail": (1_200, 0.14), "inconclusive": (300, 0.0)}


def names(groups: int) -> list[str]:
    if groups <= len(RACES):
        return list(RACES[:groups])
    sexes = ("Female", "Male")
    return [
        f"{RACES[i % 6]} × {sexes[i // 6 % 2]}" + (f" × region {i // 12:03d}" if groups > 12 else "")
        for i in range(groups)
    ]


def document(
    groups: int = 12,
    *,
    verdict: str = "fail",
    measure: str = "accuracy",
    seed: int = 0,
    named: list[str] | None = None,
    model: str = "pruned",
) -> dict[str, Any]:
    """One audit document with the verdict asked for."""
    labels = named if named is not None else names(groups)
    rows = _rows(labels, verdict=verdict, measure=measure, rng=np.random.default_rng(seed))
    result = _summary(rows, model=model, measure=measure, rng=np.random.default_rng(seed + 1))
    assert result["verdict"] == verdict, f"drew {result['verdict']} for {verdict}"
    return result


def side_by_side(groups: int = 12, *, models: dict[str, str], seed: int = 0) -> dict[str, Any]:
    """Several models (name -> verdict) on the same groups; the top level speaks of the worst of them."""
    audits = {
        name: document(groups, verdict=verdict, model=name, seed=seed + index)
        for index, (name, verdict) in enumerate(models.items())
    }
    order = ("fail", "inconclusive", "pass")
    worst = min(audits.values(), key=lambda audit: order.index(audit["verdict"]))
    pairs = [(a, b) for i, a in enumerate(models) for b in list(models)[i + 1 :]]
    return {**worst, "models": audits, "comparisons": [_comparison(audits[a], audits[b]) for a, b in pairs]}


def with_columns(document: dict[str, Any], *, seed: int = 0) -> dict[str, Any]:
    """The document with numbers of three sizes beside its groups, some of them absent."""
    rng = np.random.default_rng(seed)
    named = [group["group"] for group in document["groups"]]
    columns: dict[str, dict[str, float | None]] = {
        "gradient norm": {name: float(rng.lognormal(0, 1)) for name in named},
        "largest Hessian eigenvalue": {name: float(rng.lognormal(7, 1)) for name in named[1:]},
        "tiny": {name: -float(rng.random()) * 1e-6 for name in named},
    }  # fmt: skip
    columns["gradient norm"][named[-1]] = None
    models = {name: {**audit, "columns": columns} for name, audit in document.get("models", {}).items()}
    return {**document, "columns": columns} | ({"models": models} if models else {})


def _rows(labels: list[str], *, verdict: str, measure: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    size, harm = PLANS[verdict]
    count = len(labels)
    samples = np.maximum((size * rng.lognormal(0, 0.35, count)).astype(int), 12)
    extra = np.zeros(count)
    extra[rng.permutation(count)[: max(1, count // 50)]] = harm
    base = rng.uniform(0.03, 0.06, count)
    broke, fixed = rng.binomial(samples, base + 0.01 + extra), rng.binomial(samples, base)
    gap = (broke - fixed) / samples
    excess = gap - (samples @ gap) / samples.sum()
    share = samples / samples.sum()
    variance = ((broke + fixed + 2) / samples - gap**2) / samples
    error = np.sqrt((1 - 2 * share) * variance + share**2 @ variance)
    dense = rng.uniform(0.2, 0.6, count) if measure == "loss" else rng.uniform(0.82, 0.96, count)
    pruned = dense + gap if measure == "loss" else dense - gap
    one, all_one = NormalDist().inv_cdf(CONFIDENCE), NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / count)
    both = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / count / 2)
    columns = {
        "samples": samples, "dense": dense, "pruned": pruned, "gap": gap, "excess_gap": excess,
        "lower": excess - both * error, "upper": excess + both * error,
        "test_lower": excess - all_one * error, "test_upper": excess + one * error,
        "gap_lower": gap - both * np.sqrt(variance), "gap_upper": gap + both * np.sqrt(variance),
        "broke": broke, "fixed": fixed, "disagreement": (broke + fixed) / samples,
        "violates": excess - all_one * error > TOLERANCE,
        "fell": gap - both * np.sqrt(variance) > 0, "tiny": samples < 10,
    }  # fmt: skip
    return [
        {"group": label, "attributes": {"race": label.split(" × ")[0]}}
        | {name: values[i].item() for name, values in columns.items()}
        | {"samples_needed": None if excess[i] > TOLERANCE else int(samples[i] * 3)}
        for i, label in enumerate(labels)
    ]


def _summary(
    rows: list[dict[str, Any]], *, model: str, measure: str, rng: np.random.Generator
) -> dict[str, Any]:
    samples = np.array([row["samples"] for row in rows])
    share = samples / samples.sum()
    mean = {
        key: float(share @ [row[key] for row in rows]) for key in ("dense", "pruned", "gap", "disagreement")
    }
    error = np.array([(row["upper"] - row["lower"]) / 6 for row in rows])
    chance = rng.normal(0, error, (400, len(rows)))
    worst = max(rows, key=lambda row: row["excess_gap"])
    lower, upper = max(row["test_lower"] for row in rows), max(row["test_upper"] for row in rows)
    verdict = "fail" if lower > TOLERANCE else "pass" if upper <= TOLERANCE else "inconclusive"
    excess = [row["excess_gap"] for row in rows]
    settle = {
        "verdict": "pass",
        "group": worst["group"],
        "samples_per_group": 2300,
        "samples": 2300 * len(rows),
    }
    return {
        "schema": "evenprune.audit/1", "verdict": verdict, "model": model,
        "tolerance": TOLERANCE, "confidence": CONFIDENCE, "measure": measure,
        "limits": "score" if measure == "accuracy" else "bootstrap", "samples": int(samples.sum()),
        "attributes": ["race", "gender"], "grouping": "intersection",
        "overall": {**mean, "lower": mean["gap"] - 0.004, "upper": mean["gap"] + 0.004},
        "max_excess_gap": {
            "estimate": worst["excess_gap"], "group": worst["group"],
            "lower": lower, "upper": upper, "debiased": worst["excess_gap"] * 0.85,
        },
        "pairwise_disparity": max(excess) - min(excess),
        "noise_floor": {
            "max_excess_gap": _floor(chance.max(axis=1)),
            "pairwise_disparity": _floor(chance.max(axis=1) - chance.min(axis=1)),
        },
        "violations": [row["group"] for row in rows if row["violates"]],
        "fell": [row["group"] for row in rows if row["fell"]],
        "settle": settle if verdict == "inconclusive" else None,
        "notes": ["37 rows have no race; they form the group (missing)."],
        "groups": rows,
    }  # fmt: skip


def _floor(draws: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return {"mean": float(draws.mean()), "low": float(low), "high": float(high)}


def _comparison(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    def difference(value: float, error: float) -> dict[str, float]:
        return {"estimate": value, "lower": value - error, "upper": value + error}

    moved = [
        (b["group"], b["gap"] - a["gap"]) for a, b in zip(first["groups"], second["groups"], strict=True)
    ]
    return {
        "first": first["model"], "second": second["model"],
        "accuracy": difference(second["overall"]["pruned"] - first["overall"]["pruned"], 0.006),
        "max_excess_gap": difference(
            second["max_excess_gap"]["estimate"] - first["max_excess_gap"]["estimate"], 0.02
        ),
        "pairwise_disparity": difference(second["pairwise_disparity"] - first["pairwise_disparity"], 0.03),
        "better": [name for name, change in moved if change < -0.05],
        "worse": [name for name, change in moved if change > 0.05],
    }  # fmt: skip

"""Measures of unseen data that chance does not swamp. The largest of many gaps is mostly chance.

Payers are the groups that plain fine-tuning takes most from, named by the held-out and choice samples of all
seeds. The question is what they lose on unseen samples, which had no part in naming them:

    payers' ψ = mean of ψ_g over the fifth of the groups with the largest ψ_g of NFT on held-out samples

Payers may be spared at the cost of others. How uneven all groups are is the spread of ψ, the standard
deviation of the true ψ_g: Paule and Mandel's τ, which leaves out what chance adds to that of the estimates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenprune.data import cifar100
from evenprune.data.utkface import RACES
from evenprune.gap_limits import psi_standard_errors
from evenprune.maximum import paule_mandel
from evenprune.tally import FloatArray
from evenprune.wording import visible
from paper.beyond_cells import AGES, SMALL
from paper.results_file import CLOSE, COUNTS

PAYERS, SPREAD = "payers_gap", "spread"
ONE_IN = 5  # groups pays, at least one
NAMED_ON = ("heldout", "choice")
NAMES = {("cifar100", groups): names for groups, names in cifar100.GROUPS.items()}
NAMES |= {("utkface", "race"): RACES, (SMALL, "age"): tuple(AGES)}
Row = Mapping[str, Any]


def payers_of(rows: Iterable[Row]) -> tuple[int, ...]:
    """From runs of NFT; none without runs. Of unseen samples no more is asked than whether there are some."""
    runs = list(rows)
    counts = [row["changes"][split] for row in runs for split in NAMED_ON]
    if not counts:
        return ()
    samples, lost = (np.sum([own[name] for own in counts], axis=0) for name in ("samples", "broke"))
    lost = lost - np.sum([own["fixed"] for own in counts], axis=0)
    known = np.flatnonzero((samples > 0) & (np.array(runs[0]["changes"]["audit"]["samples"]) > 0))
    order = np.argsort(-lost[known] / samples[known], kind="stable")  # of equals the first
    return tuple(sorted(known[order][: max(len(known) // ONE_IN, 1)].tolist()))


def gap_of(counts: Mapping[str, Sequence[int]], payers: Sequence[int]) -> float:
    """Mean of ψ_g over these groups."""
    n, broke, fixed = (np.array(counts[name], dtype=float) for name in ("samples", "broke", "fixed"))
    return float(payers_gap(broke - fixed, n, payers))


def payers_gap(lost: FloatArray, n: FloatArray, payers: Sequence[int]) -> FloatArray:
    """The same of samples lost [..., groups] of n: Δ_g = lost/n, ψ_g = Δ_g − Δ."""
    own = list(payers)
    return np.asarray((lost[..., own] / n[own]).mean(-1) - lost.sum(-1) / n.sum())


def losses_of(rows: Iterable[Row], split: str) -> FloatArray:
    """Δ_g of every group: the mean over runs; NaN where a group has no samples."""
    counts = [row["changes"][split] for row in rows]
    n, broke, fixed = (np.array([own[name] for own in counts], dtype=float) for name in COUNTS)
    with np.errstate(invalid="ignore"):
        return np.asarray(((broke - fixed) / n).mean(0))


def groups_worse(rows: Iterable[Row], than: Iterable[Row]) -> int:
    """Groups that lose more unseen samples than in other runs, both in the mean."""
    return int(np.sum(losses_of(rows, "audit") > losses_of(than, "audit") + CLOSE))


def carried_over(rows: Sequence[Row]) -> float | None:
    """How much of the groups' held-out gaps is there on unseen samples: the slope of a line over groups."""
    held, unseen = losses_of(rows, "heldout"), losses_of(rows, "audit")
    known = np.isfinite(held) & np.isfinite(unseen)
    if known.sum() < 2 or np.ptp(held[known]) == 0:
        return None
    return float(np.polyfit(held[known], unseen[known], 1)[0])


def spread_of(counts: Mapping[str, Sequence[int]]) -> float:
    """τ of Σ (ψ_g − μ)²/(τ² + s_g²) = G − 1, s_g the standard error of ψ_g."""
    named = {name: np.array(counts[name], dtype=float) for name in ("samples", "broke", "fixed")}
    n, broke, fixed = (own[named["samples"] > 0] for own in named.values())
    errors = psi_standard_errors(*(torch.from_numpy(own) for own in (n, broke, fixed))).numpy()
    excess = (broke - fixed) / n - (broke - fixed).sum() / n.sum()
    return math.sqrt(paule_mandel(excess, errors**2)[1])


def groups_named(names: Iterable[str], *, dataset: str, groups: str) -> tuple[int, ...]:
    """Those of the names that a setting has; blanks may be written for underscores."""
    wanted = {name.replace("_", " ") for name in names}
    known = NAMES.get((dataset, groups), ())
    return tuple(place for place, name in enumerate(known) if name.replace("_", " ") in wanted)


def name_of(group: int, *, dataset: str, groups: str) -> str:
    names = NAMES.get((dataset, groups), ())
    return visible(names[group].replace("_", " ")) if group < len(names) else f"group {group}"

"""How many held-out samples a group do multipliers need? A simulation where the true gaps are known.

    python paper/beyond_simulation.py run     a minute on one core; writes results/beyond_simulation.json
    python paper/beyond_simulation.py show    the table, and what follows from it

beyond_rest.py has the world that it looks at.
"""

import argparse
import json
import math
import platform
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

if __package__ in (None, ""):  # run as a file: its neighbours are found from the folder above
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import evenprune
from evenprune import atomic
from evenprune.tally import FloatArray, InputProblems
from paper import beyond_refused, command_line
from paper.beyond_rest import (
    CAUTION,
    MEASURES,
    NOTHING,
    RULES,
    TOLERANCE,
    WORSE,
    Rates,
    judged,
    observed,
    standard_error,
    true_gaps,
)
from paper.command_line import PAPER
from paper.results_file import to_text

RESULTS = PAPER / "results"
GROUPS = (20, 100)
SPREADS = (0.01, 0.017, 0.03)  # standard deviation of the true gaps of all groups, the worse one included
SAMPLES = (10, 25, 50, 100, 250, 500, 1000, 2000, 4000)  # held-out samples a group
CLEAR = 2.0  # Monte-Carlo standard errors from which a difference is one
TRIALS, SEED = 400, 0
BOTH = MEASURES[:2]  # what multipliers must lower to be of use
STUDIED = {
    "dataset": "cifar100", "method": "NFT", "groups": "superclass", "sparsity": 0.95, "augment": False,
    "epochs": 30, "heldout_per_class": 50,
}  # fmt: skip
Row = Mapping[str, Any]  # of the results: a setting, and what each rule left


# --- trials ---


def summary(values: FloatArray, nothing: FloatArray) -> dict[str, float]:
    """Over trials, with Monte-Carlo standard errors; differences are of the same trial."""
    less, root = values - nothing, math.sqrt(len(values))
    found = {
        "mean": values.mean(),
        "error": values.std(ddof=1) / root,
        "difference": less.mean(),
        "difference_error": less.std(ddof=1) / root,
    }
    return {name: round(float(value), 7) for name, value in found.items()}


def row_of(rates: Rates, *, groups: int, spread: float, samples: int, trials: int, seed: int) -> Row:
    """All numbers of samples look at the same true gaps; each draws its own samples of them."""
    key = [seed, groups, round(spread * 1e6)]
    psi = true_gaps(np.random.default_rng(key), trials=trials, groups=groups, spread=spread)
    seen = observed(np.random.default_rng([*key, samples]), psi, rates, samples)
    found = judged(psi, seen)
    error = standard_error(rates, groups=groups, samples=samples)
    rules = {
        name: {measure: summary(values, found[NOTHING][measure]) for measure, values in own.items()}
        for name, own in found.items()
    }
    setting = {"groups": groups, "spread": spread, "samples": samples}
    return {**setting, "standard_error": round(error, 7), **rules}


def simulated(
    rates: Rates,
    *,
    trials: int,
    seed: int,
    groups: Sequence[int] = GROUPS,
    spreads: Sequence[float] = SPREADS,
    samples: Sequence[int] = SAMPLES,
) -> dict[str, Any]:
    """The whole document; the same for the same seed."""
    rows = [
        row_of(rates, groups=g, spread=s, samples=n, trials=trials, seed=seed)
        for g in groups
        for s in spreads
        for n in samples
    ]
    told = {"trials": trials, "seed": seed, "worse": WORSE, "tolerance": TOLERANCE, "caution": CAUTION}
    return {
        "settings": told | {"broke": rates.broke, "fixed": rates.fixed, "rates_of": STUDIED},
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "torch": torch.__version__,
            "evenprune": evenprune.__version__,
        },
        "rows": rows,
        "answers": answers(rows, rates),
    }


def study_rates(path: Path) -> Rates:
    """Shares of unseen images that pruning broke and fixed in the study: plain fine-tuning, all seeds."""
    runs = read("--study", path, "runs", "give the study's results")["runs"]
    found = [run["changes"]["audit"] for run in runs if STUDIED.items() <= run.items()]
    if not found:
        told = ", ".join(f"{name} {value}" for name, value in STUDIED.items())
        raise InputProblems([f"--study is {path}, and has no run of {told}: give the study's results"])
    sums = {name: sum(sum(counts[name]) for counts in found) for name in ("samples", "broke", "fixed")}
    return Rates(round(sums["broke"] / sums["samples"], 7), round(sums["fixed"] / sums["samples"], 7))


# --- what follows ---


def answers(rows: Sequence[Row], rates: Rates) -> list[dict[str, Any]]:
    """By groups and spread: from how many samples a group on plain multipliers beat doing nothing.

    `least`: by measure; `samples`: in both; `clear`: the least number tried from which on both are beyond
    chance. Each is null if no number that was tried does it. `ratio`: standard error with `samples` / spread.
    """
    found = []
    for groups, spread in dict.fromkeys((row["groups"], row["spread"]) for row in rows):
        own = [row for row in rows if (row["groups"], row["spread"]) == (groups, spread)]
        least = {name: turning_point(own, name) for name in BOTH}
        turns = [n for n in least.values() if n is not None]
        samples = max(turns) if len(turns) == len(BOTH) else None
        ratio = standard_error(rates, groups=groups, samples=samples) / spread if samples else None
        answer = {"groups": groups, "spread": spread, "least": least, "samples": samples}
        found.append(answer | {"clear": clear_from(own), "ratio": ratio and round(ratio, 4)})
    return found


def turning_point(rows: Sequence[Row], measure: str) -> float | None:
    """From how many samples on plain multipliers leave less than doing nothing does; None: from none on.

    Between the numbers that were tried, the difference is taken as a straight line over log n. If all of them
    have a gain, the smallest.
    """
    points = sorted((row["samples"], row["plain"][measure]["difference"]) for row in rows)
    last = max((i for i, (_, difference) in enumerate(points) if difference >= 0), default=-1)
    if last + 1 == len(points):
        return None
    if last < 0:
        return float(points[0][0])
    (n, loss), (more, gain) = points[last : last + 2]
    return round(float(n * (more / n) ** (loss / (loss - gain))), 1)


def clear_from(rows: Sequence[Row]) -> int | None:
    found = None
    for row in sorted(rows, key=lambda row: -row["samples"]):
        if any(sign_of(row["plain"][name]) >= 0 for name in BOTH):
            break
        found = row["samples"]
    return found


def sign_of(cell: Mapping[str, float]) -> int:
    """Of the difference from doing nothing; 0 if it may be chance."""
    clear = abs(cell["difference"]) > CLEAR * cell["difference_error"]
    return int(np.sign(cell["difference"])) if clear else 0


# --- text ---

TITLES = {NOTHING: "nothing", "plain": "plain", "lower_limit": "lower limit", "dead_zone": "dead zone"}
MARKS = {-1: "<", 0: " ", 1: ">"}


def table(rows: Sequence[Row]) -> list[str]:
    """One line a setting, in points; < and >: clearly less or more than with doing nothing."""
    heads = "".join(f"{title:^22}" for title in TITLES.values()).rstrip()
    lines = []
    for i, row in enumerate(rows):
        if i == 0 or any(row[name] != rows[i - 1][name] for name in ("groups", "spread")):
            lines += ["", f"{row['groups']} groups, spread {100 * row['spread']:g}"]
            lines += [" " * 13 + heads, "     n  error" + " spread    max  worse " * len(TITLES)]
        cells = [
            [
                f"{100 * row[rule][measure]['mean']:6.2f}{MARKS[sign_of(row[rule][measure])]}"
                for measure in MEASURES
            ]
            for rule in TITLES
        ]
        numbers = "".join("".join(own) + " " for own in cells).rstrip()
        lines.append(f"{row['samples']:6}{100 * row['standard_error']:7.2f}{numbers}")
    return lines


def answer_lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["", "Plain multipliers beat doing nothing from n samples a group on:"]
    lines.append("groups  spread  n: spread  n: max  n: both  n: both, clearly  error/spread")
    for answer in found:
        counts = [*answer["least"].values(), answer["samples"], answer["clear"]]
        numbers = [_cell(n, width) for n, width in zip(counts, (11, 8, 9, 18), strict=True)]
        setting = f"{answer['groups']:6}{100 * answer['spread']:8.1f}"
        lines.append(setting + "".join(numbers) + _cell(answer["ratio"], 14, 2))
    return lines


def _cell(value: float | None, width: int, digits: int = 0) -> str:
    return f"{'–' if value is None else f'{value:.{digits}f}':>{width}}"


def conclusion(rows: Sequence[Row], found: Sequence[Mapping[str, Any]]) -> str:
    """Two sentences: from where on plain multipliers help, and what each rule does in all settings."""
    return f"{_turn_sentence(rows, found)} {_rules_sentence(rows)}"


def _turn_sentence(rows: Sequence[Row], found: Sequence[Mapping[str, Any]]) -> str:
    most = max(row["samples"] for row in rows)
    told: dict[int, list[str]] = {}
    for answer in found:
        number = f"{answer['samples']:.0f}" if answer["samples"] else f"more than {most}"
        told.setdefault(answer["groups"], []).append(f"{number} (spread {100 * answer['spread']:g})")
    needs = "; ".join(f"{groups} groups {', '.join(numbers)}" for groups, numbers in told.items())
    return (
        "To leave both a smaller true spread and a smaller true max ψ than doing nothing, plain multipliers "
        f"need so many held-out samples a group: {needs}{_ratio_words(found)}."
    )


def _ratio_words(found: Sequence[Mapping[str, Any]]) -> str:
    """Whether the standard error must be below the spread."""
    ratios = [answer["ratio"] for answer in found if answer["ratio"]]
    if not ratios:
        return ""
    meaning = "it may be larger than the spread" if min(ratios) > 1 else "it may be as large as the spread"
    if max(ratios) < 1:
        meaning = "it must be below the spread"
    return f"; the standard error is then {_range(ratios)} times the spread ({meaning})"


def _range(values: Sequence[float]) -> str:
    low, high = (f"{x:.2f}" for x in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _rules_sentence(rows: Sequence[Row]) -> str:
    parts = []
    for rule in RULES:
        signs = [[sign_of(row[rule][measure]) for measure in BOTH] for row in rows]
        worse, better = sum(1 in own for own in signs), sum(own == [-1, -1] for own in signs)
        most = max(row[rule]["spread"]["difference"] for row in rows)
        least = min(row[rule]["spread"]["difference"] for row in rows)
        parts.append(
            f"{TITLES[rule]} raises spread or max ψ in {worse} and lowers both in {better} "
            f"(spread {100 * most:+.1f} points at worst, {100 * least:+.1f} at best)"
        )
    return f"Of {len(rows)} settings, and beyond chance, {'; '.join(parts)}."


# --- files and the command line ---


def read(flag: str, path: Path, part: str, remedy: str) -> dict[str, Any]:
    """A JSON object with a list of that name, or an error that says what to do."""
    wrong, document = "", None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})"
    except ValueError as error:
        wrong = f"is not JSON ({error})"
    held = document.get(part) if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(held, list) or not held:
        raise InputProblems([f"{flag} is {path}, which {wrong or f'has no list of {part}'}: {remedy}"])
    return document


def run(flags: Namespace) -> None:
    folder = flags.results.resolve().parent
    if not folder.is_dir():
        raise InputProblems([f"--results is {flags.results}, in no folder: make {folder} first"])
    document = simulated(study_rates(flags.study), trials=flags.trials, seed=flags.seed)
    atomic.write_text(flags.results, to_text(document))
    print(f"{len(document['rows'])} settings of {flags.trials} trials each, written to {flags.results}")


def show(flags: Namespace) -> None:
    document = read("--results", flags.results, "rows", "`python paper/beyond_simulation.py run` makes it")
    print("\n".join(shown(document)))


def shown(document: Mapping[str, Any]) -> list[str]:
    rows, told = document["rows"], document["settings"]
    found = answers(rows, Rates(told["broke"], told["fixed"]))
    errors = [row[rule][measure]["error"] for row in rows for rule in TITLES for measure in MEASURES]
    return [
        f"True gaps after multipliers at rest, in points; {told['trials']} trials, tolerance "
        f"{100 * told['tolerance']:g}, one group {100 * told['worse']:g} worse;",
        f"standard errors by trials up to {100 * max(errors):.2f}; worse: ψ of the worse group.",
        f"< and >: less or more than with doing nothing, by more than {CLEAR:g} standard errors.",
        *table(rows),
        *answer_lines(found),
        "",
        conclusion(rows, found),
    ]


COMMANDS = {"run": run, "show": show}


def parser() -> argparse.ArgumentParser:
    whole, parts = command_line.parser(__doc__, COMMANDS)
    for part in parts.values():
        path = RESULTS / "beyond_simulation.json"
        part.add_argument("--results", type=Path, default=path, help="(%(default)s)")
    run = parts["run"]
    run.add_argument("--trials", type=int, default=TRIALS, help="a setting (%(default)s)")
    run.add_argument("--seed", type=int, default=SEED, help="(%(default)s)")
    run.add_argument(
        "--study", type=Path, default=RESULTS / "beyond.json", help="has the rates (%(default)s)"
    )
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    return command_line.ended(partial(_conduct, arguments))


def _conduct(arguments: Sequence[str] | None) -> None:
    flags = parser().parse_args(arguments)
    beyond_refused.refuse(flags, ())
    COMMANDS[flags.command](flags)


if __name__ == "__main__":
    raise SystemExit(main())

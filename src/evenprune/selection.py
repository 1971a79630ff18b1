"""One setting chosen on the held-out split, and of its runs the one that stands for it."""

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from evenprune.iterates import is_within, merit


@dataclass(frozen=True)
class Candidate:
    """A finished run as the held-out split sees it."""

    name: str
    setting: Hashable  # method with its tolerance and dual step, and sparsity: all but the seed
    title: str  # of the setting
    accuracy: float
    gap: float  # max ψ; infinite where no group is known
    least: float  # what it is at least, by its lower limit; infinite likewise


@dataclass(frozen=True)
class Choice:
    name: str  # of the run
    title: str  # of its setting
    settings: int  # there were
    seeds: int  # of this setting
    accuracy: float  # means over them
    gap: float
    within: bool  # the tolerance
    beyond: bool  # it is shown to be; where neither holds, the samples are too few to tell


def choose(candidates: Sequence[Candidate], tolerance: float) -> Choice:
    """By the means over the seeds of a setting, so that no lucky seed decides.

    Of the settings whose mean max ψ is within the tolerance the most accurate one; if there is none, the most
    accurate of those that are not shown to be beyond it, as the smallest of several noisy gaps means nothing;
    else the one with the smallest mean max ψ. Of its runs that of the median max ψ (of two, the smaller): its
    audit stands for what the setting gives, not for its best draw.
    """
    settings: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        settings.setdefault(candidate.setting, []).append(candidate)
    means = {key: _means(runs) for key, runs in settings.items()}

    def rank(key: Hashable) -> tuple[float, float]:
        accuracy, gap, least = means[key]
        return merit(accuracy, gap=gap, least=least, tolerance=tolerance), accuracy

    best = max(settings, key=rank)  # of equals the first
    runs = sorted(settings[best], key=lambda run: run.gap)
    chosen, (accuracy, gap, least) = runs[(len(runs) - 1) // 2], means[best]
    within, beyond = is_within(gap, tolerance), not is_within(least, tolerance)
    return Choice(chosen.name, chosen.title, len(settings), len(runs), accuracy, gap, within, beyond)


def _means(runs: Sequence[Candidate]) -> tuple[float, float, float]:
    """Of accuracy, max ψ and what that is at least."""
    accuracy, gap, least = zip(*((run.accuracy, run.gap, run.least) for run in runs), strict=True)
    return statistics.fmean(accuracy), statistics.fmean(gap), statistics.fmean(least)


def sentence(choice: Choice, tolerance: float) -> str:
    """Who was chosen, by what, and which run stands for it."""
    mean = f"mean of {choice.seeds} seeds: " if choice.seeds > 1 else ""
    level = f"{mean}{100 * choice.accuracy:.1f} % accurate"
    if math.isinf(choice.gap):
        several = choice.settings > 1
        why = f"the most accurate of {choice.settings} settings" if several else "the only setting"
        run = f" Of its runs {choice.name} stands for it." if choice.seeds > 1 else ""
        return (
            f"Chosen on the held-out data: {choice.title}, {why} ({level}); there is no max ψ to choose by, "
            f"as no group of the training data has held-out samples.{run}"
        )
    limit = f"ε = {float(f'{100 * tolerance:.6g}'):g}"
    if choice.within:
        place = f"within {limit}"
    else:
        place = f"beyond {limit}" if choice.beyond else f"not shown to be beyond {limit}"
    if choice.settings == 1:
        why = f"the only setting, {place}"
    elif choice.beyond:
        why = f"of {choice.settings} settings all are shown to be {place}, this one is nearest"
    else:
        why = f"the most accurate {place} of {choice.settings} settings"
        why += "" if choice.within else ", of which none is within it"
    figures = f"{level}, max ψ {100 * choice.gap:.1f} points"
    run = f" Its run of the median max ψ is {choice.name}." if choice.seeds > 1 else ""
    return f"Chosen on the held-out data: {choice.title}, {why} ({figures}).{run}"

"""One setting chosen on the held-out split, and of its runs the one that stands for it."""

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A finished run as the held-out split sees it."""

    name: str
    setting: Hashable  # method with its tolerance and dual step, and sparsity: all but the seed
    title: str  # of the setting
    accuracy: float
    gap: float  # max ψ; infinite where no group is known


@dataclass(frozen=True)
class Choice:
    name: str  # of the run
    title: str  # of its setting
    settings: int  # there were
    seeds: int  # of this setting
    accuracy: float  # means over them
    gap: float
    within: bool  # the tolerance


def choose(candidates: Sequence[Candidate], tolerance: float) -> Choice:
    """By the means over the seeds of a setting, so that no lucky seed decides.

    Of the settings whose mean max ψ is within the tolerance the most accurate one; if there is none, the one
    with the smallest mean max ψ, of equals the most accurate. Of its runs that of the median max ψ (of two,
    the smaller): its audit stands for what the setting gives, not for its best draw.
    """
    settings: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        settings.setdefault(candidate.setting, []).append(candidate)
    means = {key: _means(runs) for key, runs in settings.items()}

    def merit(key: Hashable) -> tuple[bool, float, float]:
        accuracy, gap = means[key]
        return (True, 0.0, accuracy) if _within(gap, tolerance) else (False, -gap, accuracy)

    best = max(settings, key=merit)  # of equals the first
    runs = sorted(settings[best], key=lambda run: run.gap)
    chosen, (accuracy, gap) = runs[(len(runs) - 1) // 2], means[best]
    within = _within(gap, tolerance)
    return Choice(chosen.name, chosen.title, len(settings), len(runs), accuracy, gap, within)


def _means(runs: Sequence[Candidate]) -> tuple[float, float]:
    return statistics.fmean(run.accuracy for run in runs), statistics.fmean(run.gap for run in runs)


def _within(gap: float, tolerance: float) -> bool:
    return gap <= tolerance + 1e-9  # 0.02 is not above 0.02


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
    if choice.settings == 1:
        why = f"the only setting, {'within' if choice.within else 'beyond'} {limit}"
    elif choice.within:
        why = f"the most accurate of {choice.settings} settings within {limit}"
    else:
        why = f"of {choice.settings} settings none is within {limit}, this one is nearest"
    figures = f"{level}, max ψ {100 * choice.gap:.1f} points"
    run = f" Its run of the median max ψ is {choice.name}." if choice.seeds > 1 else ""
    return f"Chosen on the held-out data: {choice.title}, {why} ({figures}).{run}"

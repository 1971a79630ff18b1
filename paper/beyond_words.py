"""How the study writes its numbers and names its settings, in text and page alike."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenprune.paper_cells import Spread
from evenprune.paper_wording import DATASETS as FROM_PAPER
from evenprune.paper_wording import signed, sparsity
from evenprune.wording import MISSING, visible
from paper import beyond_measures as measures
from paper.beyond_cells import GROUPINGS, SMALL, amount
from paper.beyond_measures import PAYERS, SPREAD
from paper.beyond_paired import Setting
from paper.beyond_summary import Block, Constrained, Entry, followed_by

TITLES = {
    "accuracy": "accuracy",
    "max_excess_gap": "max ψ",
    "pairwise_disparity": "Ψ_PW",
    "worst_gap": "worst Δ",
    PAYERS: "payers' ψ",
    SPREAD: "spread",
}
FEW = 3  # seeds from which limits and "in every seed" say something
HELD_SPLITS = {"train": "train", "heldout": "held-out", "choice": "choice", "audit": "unseen"}
DATASETS = FROM_PAPER | {SMALL: "Small faces"}
PLANNED = [(data, groups) for data, own in GROUPINGS.items() for groups in own]


# --- numbers ---


def percent(spread: Spread | None, sign: str = "") -> str:
    return MISSING if spread is None else _told(spread, f"{sign}z.1f", 100)


def plain(spread: Spread | None) -> str:
    """Two digits of a standard deviation say all that a few seeds tell."""
    if spread is None:
        return MISSING
    return f"{spread.mean:.3g}" + ("" if spread.sd is None else f" ± {spread.sd:.2g}")


def seconds(entry: Entry) -> str:
    return MISSING if entry.seconds is None else _told(entry.seconds, ".1f", 1)


HELD = ["s.e. of ψ", "followed", "s.e. there", "held-out max ψ", "carried over", "worse", "step"]


def held(block: Block, entry: Entry) -> list[str]:
    """How well ψ is known where it is chosen and followed, what of it is there unseen, and the dual step."""
    slope = measures.carried_over(entry.rows)
    base = next((other for other in block.entries if other.method == block.against), entry)
    worse = f"{measures.groups_worse(entry.rows, base.rows)} of {block.groups}"
    return [
        percent(entry.standard_error),
        *followed(entry),
        percent(entry.spread("heldout", "max_excess_gap")),
        MISSING if slope is None else f"{slope:.2f}",
        MISSING if entry is base else worse,
        tuned(entry),
    ]


def _told(spread: Spread, form: str, scale: float) -> str:
    sd = "" if spread.sd is None else f" ± {scale * spread.sd:{form.removeprefix('+')}}"
    return f"{scale * spread.mean:{form}}{sd}"


def difference(entry: Entry, measure: str) -> str:
    """From the baseline, mean ± standard deviation over seeds."""
    return percent(entry.apart(measure), sign="+")


def limits(entry: Entry, measure: str) -> str:
    """Of the mean difference from the baseline, points: "−3.1 to −0.4"."""
    found = entry.difference(measure)
    if found is None or entry.compared < FEW:
        return MISSING
    return f"{signed(found.lower, 1)} to {signed(found.upper, 1)}"


def harm(entry: Entry) -> str:
    """Limits of max ψ on unseen data, points: "1.2 to 9.8"."""
    return " to ".join(map(_points, entry.limits))


def debiased(entry: Entry) -> str:
    return _points(entry.debiased)


def _points(value: float) -> str:
    return f"{100 * value:.1f}".replace("-", "−")


def settling(entry: Entry) -> str:
    return MISSING if entry.settling is None else f"{entry.settling:,}"


def seconds_of(timing: Mapping[str, Any]) -> str:
    return f"{timing['seconds_per_60_epochs']:.1f}"


def step(value: float | None) -> str:
    return MISSING if value is None else f"{value:g}"


def of_seeds(count: int, seeds: int) -> str:
    return f"{count} of {seeds}"


def active(one: Constrained) -> str:
    """ "7 of 20"; and how many seeds are of before their loss was not finite."""
    ended = f"; {of_seeds(one.diverged, one.seeds)} diverged" if one.diverged else ""
    return f"{one.active:.0f} of {one.of}{ended}"


def clipped(entry: Entry) -> str:
    """Sample weights of a run that would have been negative; nothing where none was."""
    return f"{entry.negative_weights:,.0f}" if entry.negative_weights else ""


def same(entry: Entry) -> str:
    """Audit samples that run and baseline put into the same class, percent."""
    return percent(Spread.of(entry.versus.same))


def followed(entry: Entry) -> list[str]:
    """Samples of a group that multipliers or class bias follow ("250 heldout"), and the error of ψ there."""
    told = followed_by(entry.rows)
    return [MISSING] * 2 if told is None else [f"{told.samples:,} {told.split}", percent(told.error)]


def tuned(entry: Entry) -> str:
    """How the dual step was chosen: "0.002 of 3, by seeds 0, 1"."""
    if entry.steps < 2:
        return step(entry.step)
    seeds = ", ".join(map(str, entry.tuned_on)) or "that differ"
    return f"{step(entry.step)} of {entry.steps}, by seeds {seeds}"


# --- names ---


def dataset(name: str) -> str:
    return DATASETS.get(name, visible(name))


def baseline(name: str) -> str:
    return "plain fine-tuning (NFT)" if name == "NFT" else name


def augmentation(setting: Setting) -> str:
    return f"{'with' if setting.augment else 'without'} augmentation"


def title(setting: Setting) -> str:
    """Everything that tells a setting from others."""
    used = "all of them" if setting.heldout_used is None else amount(setting.heldout_used, "group")
    return (
        f"{dataset(setting.dataset)}, {visible(setting.groups)} groups, {setting.sparsity:.1%} sparse, "
        f"{augmentation(setting)}, {amount(setting.heldout_per_class, 'class')} held out, {used} looked at, "
        f"{setting.epochs} epochs"
    )


def order(block: Block) -> tuple[object, ...]:
    """As the study is planned; settings with all held-out samples before those with fewer."""
    s = block.setting
    planned = {place: number for number, place in enumerate(PLANNED)}
    number = planned.get((s.dataset, s.groups), len(planned))
    return (
        number,
        *(s.dataset, s.groups, s.sparsity, s.epochs, -s.heldout_per_class),
        *(s.heldout_used is not None, -block.heldout_samples, s.augment),
    )


def short_titles(found: Sequence[Block], *, brief: bool = False) -> list[str]:
    """Groups and augmentation of each block, and what else differs; brief: for narrow places."""
    return _titles([(block.setting, block.heldout_samples) for block in found], brief=brief)


def task_titles(tasks: Sequence[Setting]) -> list[str]:
    """The same of settings whatever their held-out samples."""
    return _titles([(task, 0) for task in tasks])


Place = tuple[Setting, int]  # a setting, and its held-out samples a group


def _titles(places: Sequence[Place], *, brief: bool = False) -> list[str]:
    return [_capital(", ".join(_title_parts(place, places, brief))) for place in places]


def _title_parts(place: Place, places: Sequence[Place], brief: bool) -> Iterator[str]:
    """The data set where there are several, what is always told, and what differs within a data set."""
    setting, samples = place
    alike = [other for other in places if other[0].dataset == setting.dataset]
    sizes = {own for other, own in alike if other.groups == setting.groups}

    def differs(name: str) -> bool:
        return len({getattr(other, name) for other, _ in alike}) > 1

    if len({other.dataset for other, _ in places}) > 1:
        yield dataset(setting.dataset)
    yield visible(setting.groups) if brief else f"groups by {visible(setting.groups)}"
    if differs("sparsity"):
        yield f"{sparsity(setting.sparsity)} sparse"
    if not brief:
        yield augmentation(setting)
    elif setting.augment:
        yield "augmented"
    if len(sizes) > 1:
        yield f"{samples} held out{'' if brief else ' a group'}"
    if differs("heldout_per_class"):
        yield f"{amount(setting.heldout_per_class, 'class')} unseen"
    if differs("epochs"):
        yield f"{setting.epochs} epochs"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]

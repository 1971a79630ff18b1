"""How the study writes its numbers and names its settings, in text and page alike."""

from collections.abc import Callable, Sequence

from evenprune.paper_cells import Spread
from evenprune.paper_wording import DATASETS, sparsity
from evenprune.wording import MISSING, visible
from paper.beyond_cells import amount
from paper.beyond_summary import Block, Constrained, Entry, Setting

TITLES = {
    "accuracy": "accuracy",
    "max_excess_gap": "max ψ",
    "pairwise_disparity": "Ψ_PW",
    "worst_gap": "worst Δ",
}
HELD_SPLITS = {"train": "train", "heldout": "held-out", "audit": "unseen"}
PLANNED = (("cifar100", "superclass"), ("cifar100", "class"), ("utkface", "race"))  # each ± augmentation


# --- numbers ---


def percent(spread: Spread | None, sign: str = "") -> str:
    return MISSING if spread is None else _told(spread, f"{sign}z.1f", 100)


def plain(spread: Spread | None) -> str:
    return MISSING if spread is None else _told(spread, ".3g", 1)


def seconds(spread: Spread | None) -> str:
    return MISSING if spread is None else _told(spread, ".1f", 1)


def _told(spread: Spread, form: str, scale: float) -> str:
    sd = "" if spread.sd is None else f" ± {scale * spread.sd:{form.removeprefix('+')}}"
    return f"{scale * spread.mean:{form}}{sd}"


def difference(entry: Entry, measure: str) -> str:
    """Against NFT, mean ± standard deviation over seeds."""
    return percent(Spread.of(d.estimate for d in entry.differences(measure)), sign="+")


def step(value: float | None) -> str:
    return MISSING if value is None else f"{value:g}"


def of_seeds(count: int, seeds: int) -> str:
    return f"{count} of {seeds}"


def active(one: Constrained) -> str:
    return f"{one.active:.0f} of {one.of}"


# --- names ---


def dataset(name: str) -> str:
    return DATASETS.get(name, visible(name))


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
    """Groups and augmentation of each block, and what else differs between blocks."""
    by, rest = ("", "") if brief else ("groups by ", " held out a group")
    parts: dict[str, Callable[[Setting, int], str]] = {
        "dataset": lambda setting, _: dataset(setting.dataset),
        "groups": lambda setting, _: f"{by}{visible(setting.groups)}",
        "sparsity": lambda setting, _: f"{sparsity(setting.sparsity)} sparse",
        "augment": lambda setting, _: augmentation(setting),
        "heldout": lambda _, samples: f"{samples}{rest}",
        "heldout_per_class": lambda setting, _: f"{amount(setting.heldout_per_class, 'class')} unseen",
        "epochs": lambda setting, _: f"{setting.epochs} epochs",
    }
    places = [(block.setting, block.heldout_samples) for block in found]
    always = ("groups", "augment")
    kept = [part for name, part in parts.items() if name in always or len({part(*p) for p in places}) > 1]
    return [_capital(", ".join(part(*place) for part in kept)) for place in places]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def family_title(setting: Setting) -> str:
    return f"{dataset(setting.dataset)}, groups by {visible(setting.groups)}, {augmentation(setting)}"

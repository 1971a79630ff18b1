"""Words for paired differences: which recipes were compared, and what one sees, from the numbers alone."""

import statistics
from collections.abc import Sequence

from evenprune.paper_pairs import Contrast, Pair, Paired
from evenprune.paper_variants import DUAL, FAST, PLAIN, RING, TABLE, Variant
from evenprune.paper_wording import POINTS, listed, signed
from evenprune.wording import shorten, visible

RECIPES = {
    PLAIN: "the plain float32 loop",
    FAST: "bfloat16, graphs and own kernels",
    TABLE: "weight decay on all layers, as in table 1",
    "decay_last": "weight decay on the last layer alone, as the paper's published code",
    "float32": "float32 throughout",
    "tf32": "float32 with convolutions in TF32, as the paper's published code",
    "macro": "groups averaged alike in the constraints, as the paper's published code",
    RING: "rings of one sample a group in place of none",
    "detached": "no gradient through the overall loss or accuracy of the constraints",
    "while_pruning": "constraints that act from the first epoch on",
    "while_pruning_decay_last": "constraints from the first epoch on, weight decay on the last layer alone",
    "ring_1_decay_last": "rings of one sample a group in place of none, weight decay on the last layer alone",
    "plain_el": "a plain loop of its own",
    "leaking": "the weight penalty inside the constraints, as the paper's published code, on all layers",
    "published": "the paper's published code's form, decay of the last layer inside the constraints",
    "absent": "groups that a batch lacks counted as groups without loss",
    "absent_published": "the published form, and groups that a batch lacks counted as groups without loss",
}
SHORT = {
    PLAIN: "plain float32",
    TABLE: "table 1",
    "decay_last": "decay of last layer",
    "tf32": "TF32",
    "macro": "groups alike",
    RING: "rings of one",
    "detached": "detached mean",
    "while_pruning": "while pruning",
    "while_pruning_decay_last": "while pruning, last decay",
    "ring_1_decay_last": "rings of one, last decay",
    "plain_el": "plain loop",
    "leaking": "leaking decay",
    "published": "published form",
    "absent": "absent groups as 0",
    "absent_published": "published, absent as 0",
}
MOST_ALONE = 10  # runs that are named
TOLD = {
    ("train", "accuracy"): "training accuracy",
    ("test", "accuracy"): "test accuracy",
    ("train", "max_excess_gap"): "max ψ on training data",
}  # what a sentence speaks of


def recipe_name(name: str, other: str = "") -> str:
    """In full; a table's decay is spoken of only where it is what differs."""
    if name == TABLE and not other.endswith("decay_last"):
        return "the recipe of table 1"
    if name.startswith(DUAL):
        return f"{_times(name)} times the dual step"
    return RECIPES.get(name, f"recipe {shorten(visible(name), 40)}")


def short_name(name: str) -> str:
    if name.startswith(DUAL):
        return f"{_times(name)} × dual step"
    return SHORT.get(name, shorten(visible(name), 16))


def _times(name: str) -> str:
    return shorten(visible(name.removeprefix(DUAL)), 16)


def variant_title(variant: Variant) -> str:
    first, second = recipe_name(variant.first, variant.second), recipe_name(variant.second, variant.first)
    return f"{second}, beside {first}"


def difference(paired: Paired) -> tuple[str, str]:
    """ "−0.13" and "± 0.03 se"; without the latter for a single seed."""
    error = paired.standard_error
    return signed(paired.mean), "" if error is None else f"± {POINTS.number(error)} se"


# --- sentences ---


def sentences(variant: Variant) -> list[str]:
    """What one sees: the loops cell by cell, other recipes all methods at once."""
    names = short_name(variant.first), short_name(variant.second)
    if PLAIN in (variant.first, variant.second):
        return [*(contrast_sentence(row, *names) for row in variant.rows), *other_code(variant)]
    seeds = listed([_seeds(each) for each in dict.fromkeys(row.seeds for row in variant.rows)])
    start = f"{names[1]} minus {names[0]}, {seeds}:"
    moves = [
        _moves(name, [row.method for row in variant.rows], [row.figures[s][m] for row in variant.rows])
        for (s, m), name in TOLD.items()
    ]
    said = [f"{start[0].upper()}{start[1:]} {moves[0]}", *(f"{m[0].upper()}{m[1:]}" for m in moves[1:])]
    return said + other_code(variant)


def other_code(variant: Variant) -> list[str]:
    """That runs of different commits are compared; nothing where they are the same, or not told."""
    apart = {
        row.method: row.commits for row in variant.rows if all(row.commits) and len(set(row.commits)) > 1
    }
    if not apart:
        return []
    first, second = (sorted({c for pair in apart.values() for c in pair[way]}) for way in (0, 1))
    return [
        f"Not all of it need be the recipe's: the runs of {listed(list(apart))} are of different code "
        f"({short_name(variant.first)}: {listed(first)}; {short_name(variant.second)}: {listed(second)})."
    ]


def contrast_sentence(contrast: Contrast, first: str, second: str) -> str:
    """Second minus first of one cell, number by number, each with what may be said of it."""
    parts = [
        f"{name} {_clause(contrast.figures[split][measure], first)}"
        for (split, measure), name in TOLD.items()
    ]
    return f"{contrast.method}, {second} minus {first}, {_seeds(contrast.seeds)}: {'; '.join(parts)}."


def _clause(pair: Pair, first: str) -> str:
    """ "−0.13 ± 0.03 points (95 % limits −0.24 to −0.02: a difference, …)"."""
    found = pair.difference
    mean, error = difference(found)
    said = f"{mean} {error.removesuffix(' se')}".strip()
    if found.low is None or found.high is None:
        return f"{said} points (a single seed, so no limits)"
    limits = f"95 % limits {signed(found.low)} to {signed(found.high)}"
    return f"{said} points ({limits}: {_seen(pair, first)})"


def _seen(pair: Pair, first: str) -> str:
    if not pair.difference.beyond_chance:
        return "no difference to be seen"
    spread = pair.first.sd or 0.0
    if abs(pair.difference.mean) < spread:
        return f"a difference, though smaller than between seeds of {first}, sd {POINTS.number(spread)}"
    return "a difference"


def _moves(name: str, methods: Sequence[str], pairs: Sequence[Pair]) -> str:
    """How far all methods moved, whether that is more than chance, and whether towards the paper."""
    moved = listed([f"{signed(p.difference.mean)} ({m})" for m, p in zip(methods, pairs, strict=True)])
    known = [pair.difference.beyond_chance for pair in pairs if pair.difference.beyond_chance is not None]
    beyond = [f"beyond chance (95 %) in {sum(known)} of {len(known)}"] if known else []
    told = listed([*beyond, *_towards(pairs)]) if beyond or _towards(pairs) else ""
    return f"{name} {moved} points{f', {told}' if told else ''}."


def _towards(pairs: Sequence[Pair]) -> list[str]:
    """How the mean distance from the paper's numbers changed."""
    known = [(pair.paper.mean, pair.first.mean, pair.second.mean) for pair in pairs if pair.paper]
    if not known:
        return []
    before = statistics.fmean(abs(mean - first) for mean, first, _ in known)
    after = statistics.fmean(abs(mean - second) for mean, _, second in known)
    old, new = POINTS.number(before), POINTS.number(after)
    word = "as near to" if old == new else "nearer to" if after < before else "further from"
    return [f"{word} the paper's (mean distance {old}, then {new})"]


def alone_sentence(names: Sequence[str]) -> str:
    """Runs of another recipe that were not compared, and so are in no table."""
    shown = [visible(name) for name in names[:MOST_ALONE]]
    more = len(names) - len(shown)
    return f"Nothing to compare with: {'; '.join(shown)}{f'; and {more} more' if more else ''}."


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"

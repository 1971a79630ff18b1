"""Tables of paired differences for the page: the recipe, varied, and other pairs of ways to train a cell."""

from collections.abc import Iterator, Sequence

from evenprune import paper_page_tables as tables
from evenprune import paper_pair_wording as said
from evenprune import paper_wording as words
from evenprune.paper_ablations import Ablation
from evenprune.paper_cells import Spread
from evenprune.paper_charts import escaped, marked
from evenprune.paper_fields import MEASURES, SPLITS
from evenprune.paper_pairs import Contrast, Pair
from evenprune.paper_results import EPOCHS
from evenprune.paper_variants import Variant

COLUMNS = ("paper", "here", 'diff<span class="long">erence</span>')  # of either split


def overview(variants: Sequence[Variant], sizes: Sequence[str]) -> str:
    """The accuracies of all, one line a recipe and method."""
    splits = "".join(
        f'<th scope="colgroup" colspan="{len(COLUMNS)}" class="first">{name}: accuracy</th>'
        for name in tables.SPLIT_WORDS.values()
    )
    heads = "".join(
        f'<th scope="col" class="{"first" if name == COLUMNS[0] else ""}">{name}</th>'
        for _ in SPLITS
        for name in COLUMNS
    )
    head = f'<thead><tr><th rowspan="2" scope="col">What differs</th>{splits}</tr><tr>{heads}</tr></thead>'
    places = dict[str, list[str]]()
    for variant, size in zip(variants, sizes, strict=True):
        places.setdefault(_place(variant, size), []).extend(_lines(variant))
    body = "".join(tables.cell_body(escaped(place), "", lines) for place, lines in places.items())
    return tables.boxed(f'<table class="cells">{head}{body}</table>', "All recipes: accuracy")


def _lines(variant: Variant) -> Iterator[str]:
    for row in variant.rows:
        name = f"{marked(words.method_name(row.method))}: {escaped(said.short_name(variant.second))}"
        seeds = f"<small>{len(row.seeds)} seed{'s' if len(row.seeds) > 1 else ''}</small>"
        cells = [cell for split in SPLITS for cell in _before_and_after(row.figures[split]["accuracy"])]
        yield tables.line(f"{name} {seeds}", cells, "here")


def _before_and_after(pair: Pair) -> tuple[str, ...]:
    return (
        tables.number(words.printed_mean(pair.paper), kind="soft first"),
        tables.number(words.mean(pair.second), f"from {words.mean(pair.first)}"),
        _difference("", pair),
    )


def _place(variant: Variant, size: str) -> str:
    short = "" if variant.epochs == EPOCHS else f", {variant.epochs} epochs"
    return f"{words.short_title(variant.task)}{size}, {words.sparsity(variant.sparsity)} sparse{short}"


def variant_part(variant: Variant, size: str) -> str:
    """One recipe beside another, to be unfolded: what one sees, and the numbers."""
    place = _place(variant, size)
    names = said.short_name(variant.first), said.short_name(variant.second)
    table = contrast_table(variant.rows, *names, label=place)
    seen = f'<p class="lead">{marked(" ".join(said.sentences(variant)))}</p>'
    title = f"{escaped(place)}: {escaped(said.variant_title(variant))}"
    return f"<details><summary>{title}</summary>{seen}{table}</details>"


def contrast_table(rows: Sequence[Contrast], first: str, second: str, *, label: str) -> str:
    body = "".join(_contrast(row, first, second) for row in rows)
    return tables.boxed(f'<table class="cells">{tables.cells_head()}{body}</table>', label)


def _contrast(row: Contrast, first: str, second: str) -> str:
    pairs = [(m, row.figures[split][m]) for split in SPLITS for m in MEASURES]
    lines = []
    if any(pair.paper for _, pair in pairs):
        lines.append(tables.line("paper", [_printed(m, pair) for m, pair in pairs]))
    lines += [
        tables.line(escaped(first), [_spread(m, pair.first) for m, pair in pairs], "here"),
        tables.line(escaped(second), [_spread(m, pair.second) for m, pair in pairs], "here"),
        tables.line("difference", [_difference(m, pair) for m, pair in pairs]),
    ]
    if any(pair.floor for _, pair in pairs):
        lines.append(tables.line("noise floor", [tables.floor(m, pair.floor) for m, pair in pairs]))
    return tables.cell_body(marked(words.method_name(row.method)), _seeds(row), lines)


def ablation_table(ablation: Ablation) -> str:
    """With the difference seed by seed as a last line, where two rows were trained for it."""
    row = ablation.contrast
    if row is None:
        return tables.cells_table(ablation.rows, ablation.heading)
    pairs = [(m, row.figures[split][m]) for split in SPLITS for m in MEASURES]
    line = tables.line("difference", [_difference(m, pair) for m, pair in pairs])
    name = f"{ablation.rows[1][0]} minus {ablation.rows[0][0]}"
    return tables.cells_table(
        ablation.rows, ablation.heading, tables.cell_body(escaped(name), _seeds(row), [line])
    )


def _seeds(row: Contrast) -> str:
    seeds = ", ".join(map(str, row.seeds))
    return f'<span class="fact">seed{"s" if len(row.seeds) > 1 else ""} {seeds}, paired</span>'


def _spread(measure: str, spread: Spread) -> str:
    return tables.number(words.mean(spread), words.deviation(spread), tables.first(measure))


def _printed(measure: str, pair: Pair) -> str:
    mean, sd = words.printed_mean(pair.paper), words.printed_deviation(pair.paper)
    return tables.number(mean, sd, f"soft {tables.first(measure)}")


def _difference(measure: str, pair: Pair) -> str:
    kind = "apart" if pair.difference.beyond_chance else ""
    return tables.number(*said.difference(pair.difference), f"{kind} {tables.first(measure)}")

"""Tables of paired differences for the page: the recipe, varied, and other pairs of ways to train a cell."""

from collections.abc import Sequence

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


def variant_part(variant: Variant, size: str) -> str:
    """One recipe beside another: its heading, what one sees, and the numbers."""
    short = "" if variant.epochs == EPOCHS else f", {variant.epochs} epochs"
    place = f"{words.short_title(variant.task)}{size}, {words.sparsity(variant.sparsity)} sparse{short}"
    names = said.short_name(variant.first), said.short_name(variant.second)
    table = contrast_table(variant.rows, *names, label=place)
    seen = f'<p class="lead">{marked(" ".join(said.sentences(variant)))}</p>'
    return f"<h3>{escaped(place)}: {escaped(said.variant_title(variant))}</h3>{seen}{table}"


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

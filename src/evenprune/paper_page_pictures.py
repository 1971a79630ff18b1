"""The larger pictures of the report on the paper: multipliers over time, the dense model group by group."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evenprune import paper_page_tables as tables
from evenprune import paper_wording as words
from evenprune.embedding import short_name
from evenprune.paper_charts import (
    COLOURS,
    MOST_POINTS,
    Curve,
    Frame,
    Scale,
    epoch_curve,
    escaped,
    frame_of,
    line_chart,
    marked,
    multiplier_curve,
    travel,
)
from evenprune.paper_comparison import PaperReport
from evenprune.paper_fields import SPLITS
from evenprune.paper_results import Dense, Trace

LOWEST = 5  # groups named in the picture of the dense model
LAST_EPOCHS = 10


# --- multipliers ---


def multiplier_panels(traces: Sequence[Trace]) -> str:
    """One panel for each method and its settings, a line for each run."""
    panels = _panels(traces)
    most = max(40, MOST_POINTS // len(traces))
    drawn = "".join(_panel(panel, _shared(panel, panels, most), most) for panel in panels)
    return f'<div class="panels">{drawn}</div>'


def _panels(traces: Sequence[Trace]) -> list[list[Trace]]:
    found: dict[tuple[Any, ...], list[Trace]] = {}
    for trace in traces:
        found.setdefault((trace.method, trace.sparsity, trace.buffer, trace.tolerance), []).append(trace)
    return list(found.values())


def _shared(traces: Sequence[Trace], panels: Sequence[Sequence[Trace]], most: int) -> Frame:
    """Panels of one sparsity share a scale, to be compared; one multiplier for all groups has its own."""
    first = traces[0]
    alike = [
        trace
        for panel in panels
        for trace in panel
        if trace.sparsity == first.sparsity and (trace.group is None) == (first.group is None)
    ]
    frame = frame_of(multiplier_curve(trace, 0, most) for trace in alike)
    return replace(frame, across=Scale(frame.across.low, math.ceil(frame.across.high)))


def _panel(traces: Sequence[Trace], frame: Frame, most: int) -> str:
    first = traces[0]
    title = f"{words.method_name(first.method)}, {words.sparsity(first.sparsity)} sparse"
    ring = "" if first.buffer is None else "no buffer" if first.buffer == 0 else f"buffer of {first.buffer}"
    ended = sorted({trace.diverged for trace in traces if trace.diverged is not None})
    ring = ", ".join(filter(None, [ring, *(f"diverged in epoch {epoch}" for epoch in ended)]))
    curves = [multiplier_curve(trace, 1 + i % (COLOURS - 1), most) for i, trace in enumerate(traces)]
    lines = line_chart(curves, frame, title=f"Multipliers of {title}", tall=210)
    named = "".join(f'<li class="m{c.look}">{_named(t, c)}</li>' for t, c in zip(traces, curves, strict=True))
    below = _disparities(traces, title, frame.across)
    return (
        f'<div><h3>{marked(title)} <small class="soft">{escaped(ring)}</small></h3>'
        f'<div class="framed">{lines}</div><ul class="keys">{named}</ul>{below}</div>'
    )


def _named(trace: Trace, curve: Curve) -> str:
    end, late = trace.multiplier[-1], _late(trace)
    drift = f", last {LAST_EPOCHS} epochs {late:.3g} → {end:.3g}" if late is not None else f", end {end:.3g}"
    return (
        f"<b>{escaped(curve.name)}</b>: peak {max(trace.multiplier):.3g}{drift}, travel {travel(trace):.3g}"
    )


def _late(trace: Trace) -> float | None:
    """The multiplier so many epochs before the end."""
    back = round(LAST_EPOCHS * trace.steps_per_epoch / trace.stride)
    return trace.multiplier[-1 - back] if back < len(trace.multiplier) else None


def _disparities(traces: Sequence[Trace], title: str, epochs: Scale) -> str:
    """Below the multipliers, over the same epochs."""
    key, name = ("pairwise_disparity", "Ψ_PW") if traces[0].group is None else ("max_excess_gap", "max ψ")
    known = [epoch_curve(getattr(t, key), 1 + i % (COLOURS - 1), t.first_epoch) for i, t in enumerate(traces)]
    known = [curve for curve in known if curve.points]
    if not known:
        return ""
    level = None if traces[0].tolerance is None else 100 * traces[0].tolerance
    frame = replace(frame_of(known, *([] if level is None else [level])), across=epochs)
    chart = line_chart(known, frame, title=f"{name} of {title} by epoch", tall=120, level=level)
    shown = name.replace("Ψ_PW", "Ψ<sub>PW</sub>")
    return (
        f'<div class="framed small"><span class="soft">{shown} on training data, points</span>{chart}</div>'
    )


# --- the dense model ---


def dense_models(report: PaperReport) -> list[str]:
    shown = [model for model in _distinct(report.dense) if model.group_accuracy]
    return [_dense(model, words.size(report, model.task)) for model in shown]


def _distinct(dense: Sequence[Dense]) -> list[Dense]:
    """One picture for a model, however many tasks it serves."""
    found: dict[tuple[Any, ...], Dense] = {}
    for model in dense:
        found.setdefault((model.task.dataset, model.task.target, model.groups, model.weights), model)
    return list(found.values())


def _dense(model: Dense, size: str) -> str:
    told = [
        f"training data {100 * model.accuracy['train']:.2f} %",
        f"test data {100 * model.accuracy['test']:.2f} %",
    ]
    told += [f"weights {escaped(model.weights)}"] if model.weights else []
    told += [f"trained in {words.duration(model.seconds)}"] if model.seconds else []
    pictures = "".join(_levels(model, split) for split in SPLITS if split in model.group_accuracy)
    settings = ", ".join(f"{escaped(k)} = {escaped(short_name(v))}" for k, v in model.recipe.items())
    recipe = f'<p class="facts">Recipe: {settings}</p>' if settings else ""
    return (
        f"<h3>The dense model: {escaped(words.short_title(model.task) + size)}</h3>"
        f'<p class="facts tight">{"  ·  ".join(told)}</p><div class="panels">{pictures}</div>'
        f"{_level_table(model)}{recipe}"
    )


def _name(model: Dense, place: int) -> str:
    return model.groups[place] if place < len(model.groups) else f"group {place + 1}"


def _levels(model: Dense, split: str) -> str:
    """Every group's accuracy, the lowest first, as one thin bar."""
    values = {place: value for place, value in enumerate(model.group_accuracy[split]) if value is not None}
    order = sorted(values, key=values.__getitem__)
    low = min(values.values(), default=0.0)
    start = 0.0 if low < 0.6 else max(0.0, 1 - 1.25 * (1 - low))
    rise = [100 * (values[place] - start) / (1 - start or 1.0) for place in order]
    width = 100 / max(len(order), 1)
    bars = "".join(
        f'<rect x="{i * width:.2f}" width="{0.78 * width:.2f}" y="{100 - r:.2f}" height="{r:.2f}">'
        f"<title>{escaped(_name(model, place))}: {100 * values[place]:.1f} %</title></rect>"
        for i, (place, r) in enumerate(zip(order, rise, strict=True))
    )
    named = ", ".join(f"{escaped(_name(model, p))} {100 * values[p]:.1f}" for p in order[:LOWEST])
    label = f"Accuracy of every group on {split} data, lowest first"
    return (
        f'<div><div class="framed bars"><span class="soft">{tables.SPLIT_WORDS[split]}: lowest first, '
        f"from {100 * start:.3g} to 100 %</span>"
        f'<svg class="levels" height="110" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{bars}</svg></div><p class="facts tight">Lowest: {named}</p></div>'
    )


def _level_table(model: Dense) -> str:
    splits = [split for split in SPLITS if split in model.group_accuracy]
    first = model.group_accuracy[splits[0]]
    order = sorted(range(len(first)), key=lambda place: first[place] or 0.0)
    heads = "".join(f'<th scope="col">{tables.SPLIT_WORDS[split]} %</th>' for split in splits)
    rows = "".join(_level_row(model, place, splits) for place in order)
    head = f'<thead><tr><th scope="col">Group</th>{heads}</tr></thead>'
    table = f'<table class="plain">{head}<tbody>{rows}</tbody></table>'
    return (
        f"<details><summary>All {len(first)} groups of the dense model</summary>"
        f"{tables.boxed(table, 'Accuracy of every group', 'fit tall')}</details>"
    )


def _level_row(model: Dense, place: int, splits: Sequence[str]) -> str:
    levels = "".join(tables.number(words.COARSE.number(model.group_accuracy[s][place])) for s in splits)
    return f'<tr><th scope="row">{escaped(_name(model, place))}</th>{levels}</tr>'

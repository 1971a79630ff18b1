"""Pictures of the report on the paper as SVG text: drawn here, so that they need no script.

Positions across are percents of the width, so that a picture fits any window while its words keep their size.
"""

import html
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenprune.paper_cells import Figure
from evenprune.paper_results import Trace
from evenprune.wording import visible

DIAMOND, DISC = "M0-5.4L5.4 0 0 5.4-5.4 0z", "M-4.6 0a4.6 4.6 0 1 0 9.2 0a4.6 4.6 0 1 0-9.2 0z"
INNER = 1000  # units of a stretched picture, both ways
MOST_POINTS = 14_000  # of all multiplier lines together
COLOURS = 6


def escaped(text: object) -> str:
    return html.escape(visible(text))


def marked(text: object) -> str:
    """Escaped, with Ψ_PW as people write it."""
    return escaped(text).replace("Ψ_PW", "Ψ<sub>PW</sub>")


# --- scales ---


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers within the range, about so many."""
    raw = (high - low) / about or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    return f"{value:g}".replace("-", "−")


@dataclass(frozen=True)
class Scale:
    """From values to percents."""

    low: float
    high: float

    def percent(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low or 1.0)
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"

    def width(self, low: float, high: float) -> str:
        share = (high - low) / (self.high - self.low or 1.0)
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


# --- disparities beside the noise floor: one row a method ---


def floor_scale(figures: Iterable[Figure]) -> Scale | None:
    """Wide enough for every seed, every floor and the paper's numbers."""
    values = [value for figure in figures for value in _extent(figure)]
    return Scale(0.9 * max(min(values), 0.0), 1.03 * max(values)) if values else None


def _extent(figure: Figure) -> list[float]:
    here = list(figure.here.values) if figure.here else []
    floor = [figure.floor.low, figure.floor.high] if figure.floor else []
    sd = (figure.paper.sd or 0.0) if figure.paper else 0.0
    return [*here, *floor, *([figure.paper.mean - sd, figure.paper.mean + sd] if figure.paper else [])]


def floor_row(figure: Figure, scale: Scale) -> str:
    """The floor's range as a band, our seeds and their mean above, the paper's mean and deviation below."""
    parts = []
    if figure.floor:
        low, high, middle = figure.floor.low, figure.floor.high, scale.percent(figure.floor.mean)
        box = f'x="{scale.percent(low)}" width="{scale.width(low, high)}" y="3" height="26" rx="3"'
        parts += [f'<rect class="band" {box}/>', _line(middle, middle, 3, 29, "floor-mean")]
    if figure.paper:
        sd = figure.paper.sd or 0.0
        ends = scale.percent(figure.paper.mean - sd), scale.percent(figure.paper.mean + sd)
        parts += [
            _line(*ends, 23, 23, "paper-line"),
            _mark(scale.percent(figure.paper.mean), 23, DIAMOND, "paper"),
        ]
    if figure.here:
        seeds = (f'<circle class="seed" cx="{scale.percent(v)}" cy="10" r="3"/>' for v in figure.here.values)
        parts += [*seeds, _mark(scale.percent(figure.here.mean), 10, DISC, "here")]
    return f'<svg class="strip" height="32" aria-hidden="true">{"".join(parts)}</svg>'


def _sample(width: int, *parts: str) -> str:
    box = f'width="{width}" height="16" viewBox="{-width / 2:g} -8 {width} 16" aria-hidden="true"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _legend() -> str:
    band = '<rect class="band" x="-15" y="-8" width="30" height="16" rx="3"/>'
    items = {
        "here, mean": _sample(16, f'<path class="here" d="{DISC}"/>'),
        "here, one seed": _sample(16, '<circle class="seed" r="3"/>'),
        "paper, mean ± standard deviation": _sample(
            30, _line("-14", "14", 0, 0, "paper-line"), f'<path class="paper" d="{DIAMOND}"/>'
        ),
        "chance alone": _sample(30, band, _line("-3", "-3", -8, 8, "floor-mean")),
    }
    return (
        f'<ul class="legend">{"".join(f"<li>{picture}{text}</li>" for text, picture in items.items())}</ul>'
    )


def floor_axis(scale: Scale) -> str:
    texts = (
        f'<text x="{scale.percent(value / 100)}" y="12" text-anchor="middle">{tick_text(value)}</text>'
        for value in ticks(100 * scale.low, 100 * scale.high, 6)
    )
    return f'<svg class="strip-axis" height="16" aria-hidden="true">{"".join(texts)}</svg>'


def _line(x1: str, x2: str, y1: object, y2: object, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'


def _mark(x: str, y: object, path: str, kind: str) -> str:
    return f'<svg x="{x}" y="{y}" overflow="visible"><path class="{kind}" d="{path}"/></svg>'


FLOOR_LEGEND = _legend()


# --- lines over epochs ---


@dataclass(frozen=True)
class Curve:
    points: Sequence[tuple[float, float]]  # epoch, value
    look: int
    name: str


@dataclass(frozen=True)
class Frame:
    across: Scale
    upward: Scale


def frame_of(curves: Iterable[Curve], *also: float) -> Frame:
    points = [point for curve in curves for point in curve.points]
    epochs, values = [x for x, _ in points] or [0.0, 1.0], [y for _, y in points]
    top, bottom = max([*values, *also, 1e-9]), min([0.0, *values])
    return Frame(Scale(min(epochs), max(epochs)), Scale(bottom, top + 0.06 * (top - bottom)))


def line_chart(
    curves: Sequence[Curve], frame: Frame, *, title: str, tall: int, level: float | None = None
) -> str:
    """Curves over epochs; `level` is a dashed line across, such as a tolerance."""
    inner = tall - 22  # below: the numbers of the epochs
    paths = "".join(f'<path class="curve m{c.look}" d="{_path(c.points, frame)}"/>' for c in curves)
    return (
        f'<svg class="lines" height="{tall}" role="img" aria-label="{escaped(title)}">'
        f"{_grid(frame, inner)}{'' if level is None else _across(frame, inner, level, 'tolerance')}"
        f'<svg width="100%" height="{inner}" viewBox="0 0 {INNER} {INNER}" preserveAspectRatio="none">'
        f"{paths}</svg></svg>"
    )


def _share(value: float, scale: Scale) -> float:
    return (value - scale.low) / (scale.high - scale.low or 1.0)


def _path(points: Sequence[tuple[float, float]], frame: Frame) -> str:
    steps = [
        f"{INNER * _share(x, frame.across):.0f} {INNER * (1 - _share(y, frame.upward)):.0f}"
        for x, y in points
    ]
    return "M" + "L".join(step for step, _ in itertools.groupby(steps)) if steps else ""


def _across(frame: Frame, inner: int, value: float, kind: str) -> str:
    y = f"{inner * (1 - _share(value, frame.upward)):.1f}"
    return _line("0%", "100%", y, y, kind)


def _grid(frame: Frame, inner: int) -> str:
    parts = []
    for value in ticks(frame.upward.low, frame.upward.high, 4):
        y = inner * (1 - _share(value, frame.upward))
        parts.append(_across(frame, inner, value, "grid"))
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{tick_text(value)}</text>')
    for i, epoch in enumerate(ticks(frame.across.low, frame.across.high, 5)):
        x, word = frame.across.percent(epoch), "" if i else "epoch "
        parts.append(f'<text x="{x}" y="{inner + 16}" text-anchor="middle">{word}{tick_text(epoch)}</text>')
    return "".join(parts)


# --- multipliers ---


def multiplier_curve(trace: Trace, look: int, most: int) -> Curve:
    """Epochs from places: value i is of step i·stride after the first epoch."""
    per_epoch = trace.steps_per_epoch / trace.stride
    points = [
        (trace.first_epoch + place / per_epoch, value) for place, value in thinned(trace.multiplier, most)
    ]
    who = "" if trace.group is None else f"{trace.group}, "
    return Curve(points, look, f"{who}seed {trace.seed}")


def epoch_curve(values: Sequence[float | None], look: int, first: int) -> Curve:
    """In points, at the end of each epoch from the first one on; those not measured are left out."""
    known = [(i, value) for i, value in enumerate(values) if i >= first and value is not None]
    return Curve([(i + 1.0, 100 * value) for i, value in known], look, "")


def thinned(values: Sequence[float], most: int) -> list[tuple[int, float]]:
    """(place, value) of about so many values: the least and the largest of each stretch, and both ends.

    A line through these shows the same jitter as one through all of them.
    """
    if len(values) <= most:
        return list(enumerate(values))
    stretches = max(1, most // 2 - 1)
    ends = [round(i * len(values) / stretches) for i in range(stretches + 1)]
    places = {0, len(values) - 1}
    for start, end in itertools.pairwise(ends):
        stretch = range(start, end)
        places |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return [(place, values[place]) for place in sorted(places)]


def travel(trace: Trace) -> float:
    """How far the multiplier went, forth and back: Σ |λ_{t+1} − λ_t|."""
    return sum(abs(b - a) for a, b in itertools.pairwise(trace.multiplier))

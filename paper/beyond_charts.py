"""Pictures of the study as SVG text, drawn without a script; positions across are percents of the width."""

import itertools
import statistics
from collections.abc import Iterable, Sequence

from evenprune.paper_cells import Figure, Spread
from evenprune.paper_charts import (
    COLOURS,
    DISC,
    Curve,
    Frame,
    Scale,
    escaped,
    floor_axis,
    floor_scale,
    frame_of,
    line_chart,
    marked,
    tick_text,
    ticks,
)
from evenprune.paper_wording import signed
from paper import beyond_words as words
from paper.beyond_pooled import Difference
from paper.beyond_summary import Block, Constrained, Entry, Gain

ROW = 34  # height of a row of the plot of harm
GAIN_TALL, BELOW = 300, 38  # height of the plot of gains, and of the words below it
ASIDE = 6  # pixels from the dots of one method to those of the next


def line(x1: str, x2: str, y1: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" x2="{x2}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def dot(x: str, y: float, radius: float, kind: str) -> str:
    return f'<circle class="{kind}" cx="{x}" cy="{y:.1f}" r="{radius:g}"/>'


# --- harm on unseen data: one row a method ---


def harm_scale(found: Iterable[Block]) -> Scale | None:
    """Wide enough for every seed and every noise floor."""
    key = "max_excess_gap"
    entries = [entry for block in found for entry in block.entries]
    return floor_scale(Figure(e.spread("audit", key), None, None, None, e.floor(key)) for e in entries)


def difference_scale(found: Iterable[Block]) -> Scale | None:
    limits = [
        limit
        for block in found
        for entry in block.entries
        if (d := entry.difference("max_excess_gap")) is not None
        for limit in (d.lower, d.upper, *d.values)
    ]
    return Scale(1.03 * min(*limits, 0.0), 1.03 * max(*limits, 0.0)) if limits else None


def harm_plot(block: Block, scale: Scale, differences: Scale | None) -> str:
    """max ψ of every seed above the noise floor; beside it what differs from the baseline, with limits."""
    known = [e.spread("audit", "max_excess_gap") for e in block.entries if e.method == block.against]
    base = known[0] if known else None
    heads = ["max ψ on unseen data, points", f"minus {marked(block.against)}'s, same samples, points"]
    axes = [floor_axis(scale), floor_axis(differences) if differences else '<span class="soft">–</span>']
    named = "".join(f"<span>{head}{axis}</span>" for head, axis in zip(heads, axes, strict=True))
    head = f'<div class="line head"><span></span>{named}<span class="what">above chance</span></div>'
    rows = "".join(_harm_row(entry, base, scale, differences) for entry in block.entries)
    return f'<div class="floors strips">{head}{rows}</div>'


def _harm_row(entry: Entry, base: Spread | None, scale: Scale, differences: Scale | None) -> str:
    above = words.of_seeds(entry.above("max_excess_gap"), len(entry.rows))
    said = f"max ψ {words.percent(entry.spread('audit', 'max_excess_gap'))}, {above} seeds above chance"
    return (
        f'<div class="line"><span class="who">{marked(entry.name)}</span>{_harm(entry, base, scale)}'
        f'{_against(entry, differences)}<span class="what num">{above}</span>'
        f'<span class="sr">{escaped(said)}</span></div>'
    )


def _harm(entry: Entry, base: Spread | None, scale: Scale) -> str:
    here, floor = entry.spread("audit", "max_excess_gap"), entry.floor("max_excess_gap")
    assert here is not None
    middle = scale.percent(floor.mean)
    box = f'x="{scale.percent(floor.low)}" width="{scale.width(floor.low, floor.high)}"'
    parts = [
        f'<rect class="band" {box} y="4" height="{ROW - 8}" rx="3"/>',
        line(middle, middle, 4, ROW - 4, "floor-mean"),
    ]
    if base is not None:
        x = scale.percent(base.mean)
        parts.append(line(x, x, 0, ROW, "tolerance"))
    parts += [dot(scale.percent(value), ROW / 2, 3.4, "seed") for value in here.values]
    mean = scale.percent(here.mean)
    parts.append(f'<svg x="{mean}" y="{ROW / 2:g}" overflow="visible"><path class="here" d="{DISC}"/></svg>')
    return f'<svg class="strip" height="{ROW}" aria-hidden="true">{"".join(parts)}</svg>'


def _against(entry: Entry, scale: Scale | None) -> str:
    """Every seed, and a line from limit to limit of the mean; coloured if it excludes zero."""
    if scale is None:
        return "<span></span>"
    zero, own = scale.percent(0), entry.difference("max_excess_gap")
    told = "" if own is None else _limits(own, scale, told=entry.compared >= words.FEW)
    return (
        f'<svg class="strip" height="{ROW}" aria-hidden="true">{line(zero, zero, 0, ROW, "zero")}{told}</svg>'
    )


def _limits(d: Difference, scale: Scale, *, told: bool) -> str:
    """told: there are seeds enough for limits."""
    kind, y = {-1: "within", 0: "unclear", 1: "beyond"}[d.sign * told], ROW / 2
    between = line(scale.percent(d.lower), scale.percent(d.upper), y, y, "limits") if told else ""
    seeds = "".join(dot(scale.percent(value), y, 2.8, "at") for value in d.values)
    return f'<g class="{kind}">{between}{seeds}</g>'


def _sample(text: str, *parts: str) -> str:
    box = 'width="30" height="16" viewBox="-15 -8 30 16" aria-hidden="true"'
    return f"<li><svg {box}>{''.join(parts)}</svg>{text}</li>"


def _ends(kind: str) -> str:
    return f'<g class="{kind}">{line("-13", "13", 0, 0, "limits")}{dot("0", 0, 2.8, "at")}</g>'


def harm_legend(against: str) -> str:
    name = marked(against)
    return (
        '<ul class="legend">'
        + _sample("mean", f'<path class="here" d="{DISC}"/>')
        + _sample("one seed", dot("0", 0, 3.4, "seed"))
        + _sample(
            "chance alone: its range and mean",
            '<rect class="band" x="-15" y="-8" width="30" height="16" rx="3"/>',
            line("-3", "-3", -8, 8, "floor-mean"),
        )
        + _sample(f"mean of {name}", line("0", "0", -8, 8, "tolerance"))
        + _sample("differences by seed, limits of their mean", _ends("unclear"))
        + _sample(f"clearly below {name}", _ends("within"))
        + _sample("clearly above", _ends("beyond"))
        + "</ul>"
    )


# --- gain against the standard error of ψ ---


def gain_frame(own: Sequence[Gain]) -> Frame:
    """In points; from no error at all, and with zero gain in sight."""
    errors = [100 * gain.followed.error.mean for gain in own]
    ends = [100 * (g.difference.mean + s * (g.difference.sd or 0)) for g in own for s in (-1, 1)]
    low, high = min(*ends, 0.0), max(*ends, 0.0)
    space = 0.04 * (high - low or 1.0)
    return Frame(Scale(0, 1.08 * max(errors)), Scale(low - space, high + space))


def looks(own: Iterable[Gain]) -> dict[str, str]:
    """A colour for each method; hollow dots when all colours are used."""
    names = dict.fromkeys(g.entry.name for g in own)
    more = COLOURS - 1
    return {n: f"m{1 + place % more}{' hollow' * (place >= more)}" for place, n in enumerate(names)}


def aside(place: int, of: int) -> float:
    """Pixels by which the dots of a method are moved, so that methods do not cover each other."""
    return ASIDE * (place - (of - 1) / 2)


def gain_chart(own: Sequence[Gain], frame: Frame, title: str) -> str:
    """One dot a method and number of samples that it follows; whiskers: standard deviation over seeds."""
    looked, inner = looks(own), GAIN_TALL - BELOW
    drawn = "".join(
        f'<g class="{look}" transform="translate({aside(place, len(looked)):g} 0)">'
        f"{_method_gains([g for g in own if g.entry.name == name], frame, inner)}</g>"
        for place, (name, look) in enumerate(looked.items())
    )
    minus = f"minus {marked(own[0].entry.against)}'s, points; on top: samples a group that are followed"
    told = f"payers' ψ on unseen data {minus}"
    return (
        f'<div class="framed"><span class="soft">{told}</span>'
        f'<svg class="lines gains" height="{GAIN_TALL}" role="img" aria-label="{escaped(title)}">'
        f"{_gain_grid(frame, inner)}{_sizes_above(own, frame)}{drawn}</svg></div>"
        f"{_gain_keys(looked)}"
    )


def _down(value: float, frame: Frame, inner: int) -> float:
    return inner * (frame.upward.high - value) / (frame.upward.high - frame.upward.low)


def _method_gains(own: Sequence[Gain], frame: Frame, inner: int) -> str:
    places = [(frame.across.percent(100 * g.followed.error.mean), 100 * g.difference.mean) for g in own]
    joined = [
        line(a[0], b[0], _down(a[1], frame, inner), _down(b[1], frame, inner), "joined")
        for a, b in itertools.pairwise(places)
    ]
    dots = [_gain_dot(gain, *place, frame, inner) for gain, place in zip(own, places, strict=True)]
    return f"{''.join(joined)}{''.join(dots)}"


def _gain_dot(gain: Gain, x: str, value: float, frame: Frame, inner: int) -> str:
    sd = 100 * (gain.difference.sd or 0.0)
    ends = _down(value - sd, frame, inner), _down(value + sd, frame, inner)
    told = f"{gain.entry.name}, {gain.followed.samples} a group: {signed(value, 1, 1)} points"
    shown = dot(x, _down(value, frame, inner), 5, "gain").replace("/>", f"><title>{escaped(told)}</title>")
    return f"{line(x, x, *ends, 'limits')}{shown}</circle>"


def _gain_grid(frame: Frame, inner: int) -> str:
    parts = []
    for value in ticks(frame.upward.low, frame.upward.high, 5):
        y = _down(value, frame, inner)
        parts.append(line("0%", "100%", y, y, "zero" if value == 0 else "grid"))
        parts.append(f'<text x="-6" y="{y + 4:.1f}" text-anchor="end">{tick_text(value)}</text>')
    for value in ticks(frame.across.low, frame.across.high, 6):
        at = f'x="{frame.across.percent(value)}" y="{inner + 16}"'
        parts.append(f'<text {at} text-anchor="middle">{tick_text(value)}</text>')
    axis = "standard error of ψ of the samples that are followed, points"
    parts.append(f'<text x="50%" y="{inner + 34}" text-anchor="middle">{axis}</text>')
    return "".join(parts)


def _sizes_above(own: Sequence[Gain], frame: Frame) -> str:
    """How many samples a group, at the mean standard error of that many."""
    errors: dict[int, list[float]] = {}
    for gain in own:
        errors.setdefault(gain.followed.samples, []).append(100 * gain.followed.error.mean)
    return "".join(
        f'<text x="{frame.across.percent(statistics.fmean(values))}" y="-4" text-anchor="middle">'
        f"{size}</text>"
        for size, values in errors.items()
    )


def _gain_keys(looked: dict[str, str]) -> str:
    items = [
        f'<li class="{look}">{_key(look)}<span>{marked(name)}</span></li>' for name, look in looked.items()
    ]
    return f'<ul class="keys gain-keys">{"".join(items)}</ul>'


def _key(look: str) -> str:
    box = 'width="12" height="12" viewBox="-6 -6 12 12" aria-hidden="true"'
    return f'<svg class="{look}" {box}>{dot("0", 0, 5, "gain")}</svg>'


# --- how multipliers behave ---


def multiplier_panels(constraints: Sequence[Constrained]) -> str:
    """Σ|λ| after each epoch, a panel a method, a line a dual step: the mean over seeds."""
    names = dict.fromkeys(one.name for one in constraints)
    panels = "".join(_panel(name, [one for one in constraints if one.name == name]) for name in names)
    return f'<div class="panels three">{panels}</div>'


def _panel(name: str, own: Sequence[Constrained]) -> str:
    curves = [
        Curve(_sizes(one), 1 + place % (COLOURS - 1), f"step {one.step:g}") for place, one in enumerate(own)
    ]
    drawn = line_chart(curves, frame_of(curves), title=f"Σ|λ| of {name} by epoch", tall=130)
    keys = "".join(f'<li class="m{c.look}"><b>{escaped(c.name)}</b></li>' for c in curves)
    named = f'<ul class="keys inline">{keys}</ul>'
    return f'<div><h3>{marked(name)}</h3><div class="framed">{drawn}</div>{named}</div>'


def _sizes(one: Constrained) -> list[tuple[float, float]]:
    """Means of the seeds that have not diverged before."""
    longest = max(map(len, one.sizes))
    means = [statistics.fmean(s[place] for s in one.sizes if place < len(s)) for place in range(longest)]
    return [(float(one.first_epoch + place), value) for place, value in enumerate(means)]

"""The forest plot of an audit as SVG or PNG, for slides and papers (needs the extra `report`)."""

import io
from typing import Any

from evenprune.wording import Document, shorten, status, unit_of, verdict_sentence, visible

MOST_GROUPS = 40
COLOURS = {"beyond": "#D55E00", "unproven": "#B07D00", "within": "#0072B2", "tiny": "#7A7F87"}
SHAPES = {"beyond": "triangle-up", "unproven": "diamond", "within": "circle", "tiny": "square"}


def to_svg(document: Document) -> str:
    text = io.StringIO()
    _forest(document).save(text, format="svg")
    return text.getvalue()


def to_png(document: Document) -> bytes:
    data = io.BytesIO()
    _forest(document).save(data, format="png", scale_factor=2)
    return data.getvalue()


def _altair() -> Any:
    try:
        import altair
        import vl_convert  # noqa: F401  (altair renders through it, and only says so late)
    except ImportError as error:
        raise ImportError(f"Pictures need {error.name}: pip install 'evenprune[report]'") from error
    return altair


def _forest(document: Document) -> Any:
    """Whiskers: limits of all groups at once; bars: limits of the verdict; marks: estimates."""
    alt = _altair()
    rows = _rows(document)
    y = alt.Y("group:N", sort=[row["group"] for row in rows], title=None, axis=alt.Axis(labelLimit=320))
    colour = alt.Color("status:N", scale=_scale(alt, COLOURS), legend=alt.Legend(title=None, symbolOpacity=1))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    layers = [
        _band(alt, document),
        _line(alt, 0.0, dash=[1, 0]),
        _line(alt, document["tolerance"] * unit_of(document).scale, dash=[5, 3]),
        base.mark_rule(strokeWidth=1.2).encode(x=_x(alt, document), x2="upper:Q", color=colour),
        base.mark_rule(strokeWidth=5, opacity=0.45).encode(x="test_lower:Q", x2="test_upper:Q", color=colour),
        base.mark_point(size=60, filled=True, opacity=1).encode(
            x="excess:Q", color=colour, shape=alt.Shape("status:N", scale=_scale(alt, SHAPES), title=None)
        ),
    ]
    title = alt.Title(
        _lines(verdict_sentence(document)), anchor="start", fontSize=13, subtitle=_caption(document)
    )
    chart = alt.layer(*layers).properties(width=560, height=alt.Step(22), title=title)
    return chart.configure_view(stroke=None).configure_axis(grid=False)


def _rows(document: Document) -> list[dict[str, Any]]:
    scale = unit_of(document).scale
    ranked = sorted(document["groups"], key=lambda group: -group["excess_gap"])[:MOST_GROUPS]
    return [
        {
            "group": f"{rank}. {visible(shorten(str(group['group']), 48))}",  # the rank keeps cut names apart
            "status": status(group, document["tolerance"]),
            "excess": group["excess_gap"] * scale,
            **{
                key: None if group[key] is None else group[key] * scale
                for key in ("lower", "upper", "test_lower", "test_upper")
            },
        }
        for rank, group in enumerate(ranked, 1)
    ]


def _x(alt: Any, document: Document) -> Any:
    lost = {"loss": "rise of the loss", "score": "score lost (points)"}.get(
        document["measure"], "accuracy lost (points)"
    )
    return alt.X("lower:Q", title=f"{lost} beyond the average")


def _scale(alt: Any, values: dict[str, str]) -> Any:
    return alt.Scale(domain=list(values), range=list(values.values()))


def _band(alt: Any, document: Document) -> Any:
    floor, scale = document["noise_floor"]["max_excess_gap"], unit_of(document).scale
    values = [{"low": floor["low"] * scale, "high": floor["high"] * scale}]
    return (
        alt.Chart(alt.Data(values=values))
        .mark_rect(color="#999", opacity=0.18)
        .encode(x="low:Q", x2="high:Q")
    )


def _line(alt: Any, at: float, *, dash: list[int]) -> Any:
    return alt.Chart(alt.Data(values=[{"at": at}])).mark_rule(strokeDash=dash, color="#444").encode(x="at:Q")


def _lines(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 100)


def _caption(document: Document) -> list[str]:
    hidden = max(0, len(document["groups"]) - MOST_GROUPS)
    more = f" The {MOST_GROUPS} worst groups; {hidden:,} more are not drawn." if hidden else ""
    return [
        "Mark: estimate. Thick: limits of the verdict. Thin: limits for all groups at once.",
        f"Dashed: tolerance. Grey: worst value that chance alone gives.{more}",
    ]

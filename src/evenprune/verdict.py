"""An audit's outcome: `Audit` and its parts. Plain values; what is computed lies in `evidence`."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

SCHEMA = "evenprune.audit/1"
Word = Literal["pass", "fail", "inconclusive"]
Columns = dict[str, dict[str, float | None]]  # further numbers: title -> group -> value
STRICTNESS: dict[Word, int] = {"pass": 0, "inconclusive": 1, "fail": 2}


class Approximate(float):
    """A number whose computation did not converge; it is shown with ≈."""


class GroupHarmed(AssertionError):
    """Raised by `Audit.check()`: the audit did not pass."""


@dataclass(frozen=True)
class Group:
    """One group's figures. `lower`, `upper` hold for all groups at once; the verdict uses the test limits."""

    group: str
    attributes: dict[str, str | None]
    samples: int
    dense: float
    pruned: float
    gap: float
    excess_gap: float
    lower: float
    upper: float
    test_lower: float
    test_upper: float
    gap_lower: float
    gap_upper: float
    broke: int
    fixed: int
    disagreement: float
    violates: bool
    fell: bool
    tiny: bool
    samples_needed: int | None


@dataclass(frozen=True)
class Overall:
    dense: float
    pruned: float
    gap: float
    lower: float
    upper: float
    disagreement: float


@dataclass(frozen=True)
class MaxExcessGap:
    estimate: float
    group: str
    lower: float
    upper: float
    debiased: float


@dataclass(frozen=True)
class Settle:
    """The sample that would settle an inconclusive audit, if the groups are what they seem to be."""

    verdict: Word
    group: str
    samples_per_group: int | None
    samples: int | None


@dataclass(frozen=True)
class Difference:
    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Comparison:
    """Two pruned models on the same samples: second minus first, paired per sample."""

    first: str
    second: str
    accuracy: Difference
    max_excess_gap: Difference
    pairwise_disparity: Difference
    better: tuple[str, ...]
    worse: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """Whether some group lost more than the tolerance beyond the average. Prints as a table.

    Where several pruned models were audited, this speaks of the worst of them; `models` has them all.
    """

    verdict: Word
    model: str
    tolerance: float
    confidence: float
    measure: str
    limits: str
    samples: int
    attributes: tuple[str, ...]
    grouping: str
    overall: Overall
    max_excess_gap: MaxExcessGap
    pairwise_disparity: float
    noise_floor: dict[str, dict[str, float]]
    violations: tuple[str, ...]
    fell: tuple[str, ...]
    settle: Settle | None
    notes: tuple[str, ...]
    groups: tuple[Group, ...]
    models: "dict[str, Audit]"
    comparisons: tuple[Comparison, ...]
    columns: Columns = field(default_factory=dict)
    merged: dict[str, dict[str, int]] = field(default_factory=dict)  # group -> merged into it -> samples
    subject: str = ""  # which model on which data, where the one who audits knows it: the headline

    @property
    def worst(self) -> Group:
        """The group with the largest excess gap."""
        return self[self.max_excess_gap.group]

    def __getitem__(self, group: str) -> Group:
        for found in self.groups:
            if found.group == group:
                return found
        raise KeyError(
            f"no group {group!r} in this audit; it has {', '.join(g.group for g in self.groups[:20])}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, as described in docs/audit.schema.json."""
        document: dict[str, Any] = {"schema": SCHEMA}
        document |= {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        if not self.models:
            del document["models"], document["comparisons"]
        document["approximate"] = _approximate(self.columns)
        for name in ("columns", "approximate", "merged", "subject"):
            if not document[name]:
                del document[name]
        return document

    @staticmethod
    def from_dict(document: dict[str, Any]) -> "Audit":
        """The inverse of `to_dict`."""
        if document.get("schema") != SCHEMA:
            raise ValueError(f"not an audit: its schema is {document.get('schema')!r}, expected {SCHEMA!r}")
        known = {f.name for f in fields(Audit)}
        values = {name: value for name, value in document.items() if name in known}
        for name, make in _PARTS.items():
            values[name] = make(document.get(name))
        values["columns"] = _columns(document.get("columns") or {}, document.get("approximate") or {})
        return Audit(**values)

    def save(self, path: str | Path) -> Path:
        """Write a page (.html), data (.json), Markdown (.md), text (.txt) or a picture (.svg, .png)."""
        from evenprune import report

        report.write(self.to_dict(), Path(path))
        return Path(path)

    def check(self, *, inconclusive: Literal["fail", "pass"] = "fail") -> None:
        """Raise GroupHarmed unless the audit passed, naming the groups and by how much."""
        if self.verdict == "fail" or (self.verdict == "inconclusive" and inconclusive == "fail"):
            raise GroupHarmed(self._complaint())

    def _complaint(self) -> str:
        from evenprune import report

        scale, unit = (1, "") if self.measure == "loss" else (100, " points")
        lines = [
            f"- {f'{a.model}: ' if self.models else ''}{g.group}: {scale * g.excess_gap:.2f}{unit} "
            f"beyond the average, {scale * (g.excess_gap - self.tolerance):.2f}{unit} beyond the tolerance "
            f"(limits {scale * g.lower:.2f} to {scale * g.upper:.2f}{unit})"
            for a in (self.models or {self.model: self}).values()
            for g in a.groups
            if g.violates
        ]
        return "\n".join([report.verdict_sentence(self.to_dict()), *lines])

    def __str__(self) -> str:
        from evenprune import report

        return report.to_text(self.to_dict())


def _plain(value: Any) -> Any:
    if isinstance(value, Audit):
        return value.to_dict()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def _approximate(columns: Columns) -> dict[str, list[str]]:
    """The groups, by title, whose numbers did not converge."""
    found = {
        title: [group for group, value in values.items() if isinstance(value, Approximate)]
        for title, values in columns.items()
    }
    return {title: groups for title, groups in found.items() if groups}


def _columns(columns: Columns, approximate: dict[str, list[str]]) -> Columns:
    """The inverse: numbers that did not converge are marked as such again."""
    marked = {title: set(groups) for title, groups in approximate.items()}
    return {
        title: {
            group: Approximate(value) if value is not None and group in marked.get(title, ()) else value
            for group, value in values.items()
        }
        for title, values in columns.items()
    }


def _tuple(values: Iterable[Any] | None) -> tuple[Any, ...]:
    return tuple(values or ())


def _comparison(d: dict[str, Any]) -> Comparison:
    differences = {k: Difference(**d[k]) for k in ("accuracy", "max_excess_gap", "pairwise_disparity")}
    return Comparison(
        d["first"], d["second"], **differences, better=_tuple(d["better"]), worse=_tuple(d["worse"])
    )


_PARTS: dict[str, Any] = {
    "attributes": _tuple,
    "overall": lambda d: Overall(**d),
    "max_excess_gap": lambda d: MaxExcessGap(**d),
    "violations": _tuple,
    "fell": _tuple,
    "settle": lambda d: Settle(**d) if d else None,
    "notes": _tuple,
    "groups": lambda d: tuple(Group(**g) for g in d),
    "models": lambda d: {name: Audit.from_dict(m) for name, m in (d or {}).items()},
    "comparisons": lambda d: tuple(_comparison(c) for c in d or ()),
    "merged": lambda d: {into: dict(small) for into, small in (d or {}).items()},
}

"""How a table of text is spelled: its separator, the names of its columns, and which texts are numbers."""

import contextlib
import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

SEPARATORS = (",", ";", "\t")
RECORDS_SEEN = 100  # to find the separator
FIRST_INEXACT = 2**53  # from here on float64 takes neighbouring whole numbers for one
WHOLE = r"^[-+]?[0-9]+(\.0*)?$"


@dataclass(frozen=True)
class Spelling:
    """What the texts of a column are; with ``digits``, whole numbers that only compare digit by digit."""

    dtype: pl.DataType
    digits: bool = False


def separator_of(head: bytes) -> str:
    """The separator that gives most records as many fields as the header; of several, the one giving most."""

    def fit(separator: str) -> tuple[float, int]:
        widths = [len(record) for record in _records(head, separator, RECORDS_SEEN)] or [0]
        return (widths.count(widths[0]) / len(widths), widths[0]) if widths[0] > 1 else (0.0, 0)

    return max(SEPARATORS, key=fit)


def header_of(head: bytes, separator: str) -> list[str]:
    """The names in the first record; quotes that are doubled inside quotes are one quote."""
    return next(iter(_records(head, separator, 1)), [])


def _records(head: bytes, separator: str, most: int) -> list[list[str]]:
    """The first records that are not blank, as far as they can be read."""
    lines = io.StringIO(head.decode("utf-8-sig", "replace"), newline="")
    found: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        for record in csv.reader(lines, delimiter=separator):
            found += [record] if record else []
            if len(found) == most:
                break
    return found


def repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def told_apart(names: Sequence[str]) -> list[str]:
    """Every name once, as a frame needs it: the second ``a`` is called ``a_duplicated_0``."""
    before: Counter[str] = Counter()
    apart = []
    for name in names:
        apart.append(f"{name}_duplicated_{before[name] - 1}" if before[name] else name)
        before[name] += 1
    return apart


def spellings(frame: pl.LazyFrame, texts: Sequence[pl.Expr], *, ids: bool) -> list[Spelling]:
    """A column of texts is one of numbers if every text in it reads as one, over the whole file.

    Ids that float64 would mix up stay text, and so do the numbers that they are compared with.
    """
    checks = [pl.all().null_count().name.prefix("n ")]  # reads every field: else too long rows go unseen
    for i, text in enumerate(texts):
        for kind, dtype in (("i", pl.Int64), ("f", pl.Float64)):
            unread = text.is_not_null() & text.cast(dtype, strict=False).is_null()
            checks.append(unread.any().alias(f"{kind} {i}"))
        checks.append((text.str.len_bytes() >= len(str(FIRST_INEXACT))).any().alias(f"l {i}"))
    found = frame.select(checks).collect(engine="streaming").row(0, named=True)
    places = range(len(texts))
    numeric = [i for i in places if not found[f"f {i}"]]
    if ids and any(found[f"l {i}"] for i in numeric) and _any_long_id(frame, [texts[i] for i in numeric]):
        return [Spelling(pl.String(), digits=i in numeric) for i in places]
    dtypes = [pl.Int64() if not found[f"i {i}"] else pl.Float64() for i in places]
    return [Spelling(dtypes[i] if i in numeric else pl.String()) for i in places]


def _any_long_id(frame: pl.LazyFrame, texts: Sequence[pl.Expr]) -> bool:
    long = [is_whole(text) & (text.cast(pl.Float64).abs() >= FIRST_INEXACT) for text in texts]
    return bool(frame.select(pl.any_horizontal(long).any()).collect(engine="streaming").item())


def is_whole(text: pl.Expr) -> pl.Expr:
    """True where a text is a whole number that is written out, not rounded: ``7``, ``+7.0``, no ``7e30``."""
    return text.str.contains(WHOLE)


def plain_digits(text: pl.Expr) -> pl.Expr:
    """Whole numbers in one spelling: +7, 007 and 7.0 become 7."""
    plain = text.str.replace(r"^\+?(-?)0*([0-9]+)(?:\.0*)?$", "${1}${2}")
    return plain.str.replace(r"^-0$", "0")

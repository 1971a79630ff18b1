"""Separators and names are read as csv does; class ids of any length compare exactly, or are refused."""

import csv
import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenprune.tables import Columns, read
from evenprune.tally import Scores
from tests.test_tables import CLASSES, EXPECTED, FRAME, counts, problems, save


def test_names_are_read_as_csv_does(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = ["label", 'prüned "x"', 'a""b', "two\nlines", " c ", "label_duplicated_0"]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, [1, 1, 1, "x", 1, 1], [1, 0, 1, "y", 1, 1]])
    columns = Columns(label="label", dense='prüned "x"', pruned=('a""b', " c "), groups=("two\nlines",))
    assert counts(read(str(path), columns)) == {(("x",), 7): 1, (("y",), 6): 1}


SEPARATED = [  # label, dense, pruned, and a group column whose name comes first
    ('"a,b, c";label;dense;pruned\nx;1;1;1\ny;1;0;1\n', "a,b, c", ["x", "y"]),
    ("a,b;label;dense;pruned\nx;1;1;1\ny;1;0;1\n", "a,b", ["x", "y"]),
    ("a,b;label;dense;pruned\nx,1,2,3;1;1;1\ny;1;0;1\n", "a,b", ["x,1,2,3", "y"]),
    ("label;dense;pruned;a,b\n1;1;1;0,5\n1;0;1;1,5\n", "a,b", ["0,5", "1,5"]),
    ('g,label,dense,pruned\n"x;y;z",1,1,1\n"y;a",1,0,1\n', "g", ["x;y;z", "y;a"]),
    ("g;h,label,dense,pruned\nx,1,1,1\ny,1,0,1\n", "g;h", ["x", "y"]),
    ("a,b\tlabel\tdense\tpruned\nx\t1\t1\t1\ny\t1\t0\t1\n", "a,b", ["x", "y"]),
    ('\n\ng;label;dense;pruned\n"x\n,\n";1;1;1\n\ny;1;0;1\n', "g", ["x\n,\n", "y"]),
]  # fmt: skip


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(("text", "group", "values"), SEPARATED)
def test_the_separator_is_the_one_that_cuts_all_lines_alike(
    tmp_path: Path, text: str, group: str, values: list[str], packed: Any
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(packed(text.encode()))
    columns = Columns(label="label", dense="dense", pruned=("pruned",), groups=(group,))
    assert counts(read(str(path), columns)) == {((values[0],), 3): 1, ((values[1],), 2): 1}


def test_the_separator_of_a_text_that_polars_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.zst"
    try:
        FRAME.write_csv(path, separator=";", compression="zstd")
    except TypeError:
        pytest.skip("this polars writes no compressed CSV")
    assert counts(read(str(path), CLASSES)) == EXPECTED


LONG = [2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 12345678901234567890, 12345678901234567891, 10**40]
IDS = st.sampled_from([0, 7, -7, *LONG, *(-i for i in LONG), 10**40 + 1])
WAYS = st.sampled_from(["{}", "{}.0", "{}.", "+{}", "00{}"])


def spelled_id(number: int, way: str) -> str:
    return str(number) if number < 0 and way[0] != "{" else way.format(number)


ID_ROWS = st.lists(st.tuples(*[st.tuples(IDS, WAYS)] * 3), max_size=20)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ID_ROWS, fixed=st.sampled_from(LONG))
def test_class_ids_of_any_length_compare_exactly(
    tmp_path: Path, rows: list[tuple[tuple[int, str], ...]], fixed: int
) -> None:
    rows = [*rows, *[((fixed, "{}"),) * 3] * 2]
    lines = [
        [*(spelled_id(*field) for field in row), "ab"[place % 2]] for place, row in enumerate(reversed(rows))
    ]
    path = tmp_path / "t.csv"
    pl.DataFrame(lines, schema=FRAME.columns, orient="row").write_csv(path)
    expected = Counter(
        (("ab"[place % 2],), (label[0] == dense[0]) + 2 * (label[0] == pruned[0]))
        for place, (label, dense, pruned) in enumerate(reversed(rows))
    )
    assert counts(read(str(path), CLASSES)) == expected


@pytest.mark.parametrize("ending", ["parquet", "arrow", "npz"])
def test_stored_class_ids_of_any_length_compare_exactly(tmp_path: Path, ending: str) -> None:
    label = [2**53, 2**53 + 1, 2**63 - 1, 2**63 - 1, 5, 0]
    arrays = {
        "label": np.array(label, dtype=np.int64),
        "dense": np.array([2**53 + 1, 2**53 + 1, 2**63, 2**63 - 1, 5, 0], dtype=np.uint64),
        "pruned": np.array([0, 1, 2, 3, 5, 0], dtype=np.float32),
        "group": np.array(list("abcdef")),
    }
    path = tmp_path / f"t.{ending}"
    np.savez(path, **arrays) if ending == "npz" else save(pl.DataFrame(arrays), path)
    patterns = dict(zip("abcdef", [0, 1, 0, 1, 3, 3], strict=True))
    assert counts(read(str(path), CLASSES)) == {((g,), pattern): 1 for g, pattern in patterns.items()}


FLOATS = [
    ("npz", np.float16, 11), ("npz", np.float32, 24), ("npz", np.float64, 53),
    ("parquet", np.float32, 24), ("parquet", np.float64, 53),
]  # fmt: skip


@pytest.mark.parametrize(("ending", "dtype", "bits"), FLOATS)
def test_floats_that_mix_up_class_ids_are_refused(tmp_path: Path, ending: str, dtype: Any, bits: int) -> None:
    """The pruned model said first + 1 in row 2, which is the label first once it is kept as a float."""
    first = 2**bits
    label = np.array([first - 1, first] * 3)
    arrays = {"label": label, "dense": label, "group": np.array(list("abcabc"))}
    path = tmp_path / f"t.{ending}"

    def write(ids: np.ndarray) -> None:
        columns = arrays | {"pruned": ids.astype(dtype)}
        np.savez(path, **columns) if ending == "npz" else save(pl.DataFrame(columns), path)

    write(np.array([first - 1] * 6))
    assert read(str(path), CLASSES).samples == 6
    write(np.array([first - 1, first + 1] * 3))
    message = problems(path)
    assert (
        f"'pruned' holds {float(first)} (3 such values, first in rows 2, 4, 6): from {first:,} on" in message
    )
    assert "save whole numbers or text" in message


def test_json_numbers_that_became_floats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    long, row = 2**53 + 1, '{{"label": {0}, "dense": {0}, "pruned": {1}, "group": "{2}"}}\n'
    path.write_text(row.format(long, long + 1, "a") + row.format(1, 1, "b"))
    assert counts(read(str(path), CLASSES)) == {(("a",), 1): 1, (("b",), 3): 1}
    path.write_text(row.format(long, long - 1, "a") + row.format(1, 1.0, "b"))
    assert "'pruned' holds 9007199254740992.0 (row 1): from 9,007,199,254,740,992 on Float64" in problems(
        path
    )


def test_rounded_numbers_beside_long_class_ids_are_refused(tmp_path: Path) -> None:
    path, long = tmp_path / "t.csv", 12345678901234567890
    head = "label,dense,pruned,group\n"
    path.write_text(f"{head}{long},{long},{float(long)},a\n{long},{long},{long},b\n")
    assert f"'pruned' holds '{float(long)}' (row 1): beside class ids this long" in problems(path)
    path.write_text(f"{head}{float(long)},1,{float(long)},a\n1,1,1,b\n")
    assert f"'label' holds {float(long)} (row 1): from 9,007" in problems(path)


def test_long_class_ids_beside_words_compare_as_they_are_written(tmp_path: Path) -> None:
    path, long = tmp_path / "t.csv", 12345678901234567890
    lines = [f"{long},{long},{long + 1},a", f"none,{long},{long},b", f"0{long},0{long},{long},a"]
    path.write_text("\n".join(["label,dense,pruned,group", *lines, f"{long},{long},{long},b"]) + "\n")
    assert counts(read(str(path), CLASSES)) == {(("a",), 1): 2, (("b",), 0): 1, (("b",), 3): 1}


def test_long_losses_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("d,p,g\n12345678901234567890,1e300,a\n1,2,b\n")
    data = read(str(path), Columns(answers="loss", dense="d", pruned=("p",), groups=("g",)))
    assert isinstance(data, Scores)
    assert data.dense.tolist() == [12345678901234567890.0, 1.0]

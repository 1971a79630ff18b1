"""The real command: verdicts, exit codes, outputs, and every kind of bad input."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.commands import COMMAND, Done, called, started

ANSWERS = ["--label", "label", "--dense", "dense", "--pruned", "pruned"]
FLAGS = [*ANSWERS, "--group", "group", "--tolerance", "0.02"]


def audit(*arguments: str | Path, start: bool = False, **options: Any) -> Done:
    return (started if start else called)("audit", *arguments, **options)


def sample(*, harmed: float = 0.0, n: int = 6000) -> pl.DataFrame:
    """Three groups; the pruned model breaks 2 % of the answers everywhere and more of them in group c."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 5, n)
    group = np.array(["a", "b", "c"])[np.arange(n) % 3]
    dense = np.where(rng.random(n) < 0.9, label, (label + 1) % 5)
    broken = rng.random(n) < np.where(group == "c", 0.02 + harmed, 0.02)
    pruned = np.where(broken, (dense + 1) % 5, dense)
    return pl.DataFrame({"label": label, "dense": dense, "pruned": pruned, "group": group})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    sample().write_csv(place / "fair.csv")
    sample(harmed=0.2).write_csv(place / "harmed.csv")
    sample(n=300).write_csv(place / "small.csv")
    return place


def refused(done: Done, *said: str) -> None:
    """Exit code 2, nothing on the screen but a message in plain words."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "panicked" not in done.stderr
    assert done.stderr.startswith("evenprune: ")
    for part in said:
        assert part in done.stderr


# Verdicts, exit codes, outputs


def test_a_pass_with_every_output(folder: Path, tmp_path: Path) -> None:
    outputs = ["--json", tmp_path / "a.json", "--html", tmp_path / "a.html", "--markdown", tmp_path / "a.md"]
    done = audit(folder / "fair.csv", *FLAGS, *outputs, start=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Pass")
    written = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert written["verdict"] == "pass"
    assert written["attributes"] == ["group"]
    assert [g["samples"] for g in written["groups"]] == [2000, 2000, 2000]
    assert "<html" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "| a " in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.json", "a.md"]


def test_a_fail_names_the_group(folder: Path) -> None:
    done = audit(folder / "harmed.csv", *FLAGS, "--json", "-")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["violations"] == ["c"]


@pytest.mark.parametrize("arguments", [["harmed.csv", *FLAGS], ["none.csv", *FLAGS], ["--tolerance", "x"]])
def test_a_call_says_what_a_process_says(folder: Path, arguments: list[str]) -> None:
    """Most tests call the command within their own process."""
    done = [audit(*arguments, start=start, cwd=folder) for start in (True, False)]
    alone, within = ((one.returncode, one.stdout, one.stderr) for one in done)
    assert alone == within
    assert alone[0] in (1, 2)


@pytest.mark.parametrize(("flags", "code"), [([], 3), (["fail"], 1), (["pass"], 0)])
def test_what_inconclusive_exits_with(folder: Path, flags: list[str], code: int) -> None:
    more = ["--inconclusive", *flags] if flags else []
    done = audit(folder / "small.csv", *FLAGS, *more, start=code == 3)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.startswith("Inconclusive")


def test_standard_input_and_quiet(folder: Path) -> None:
    done = audit("-", *FLAGS, "--quiet", start=True, input=(folder / "fair.csv").read_text())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_options_reach_the_audit(folder: Path, tmp_path: Path) -> None:
    frame = sample().with_columns(
        pl.when(pl.col("group") != "b").then(pl.col("group")).alias("group"),
        pl.Series("half", ["x", "y", "y", "x"] * 1500),
        (pl.col("label") == pl.col("dense")).alias("ok"),
        (pl.col("label") == pl.col("pruned")).alias("one more, ^*$"),
        pl.lit(False).alias("never"),
    )
    path = tmp_path / "t.parquet"
    frame.write_parquet(path)
    known = ["--dense-correct", "ok", "--pruned-correct", "one more, ^*$", "--pruned-correct", "never"]
    grouped = ["--group", "group", "--group", "half", "--each", "--missing", "drop", "--min-samples", "3"]
    rest = ["--tolerance", "0.1", "--confidence", "0.9", "--seed", "5", "--json", "-"]
    written = json.loads(audit(path, *known, *grouped, *rest).stdout)
    assert list(written["models"]) == ["one more, ^*$", "never"]
    assert written["grouping"] == "each"
    assert written["confidence"] == 0.9
    assert written["samples"] == 4000
    assert written["attributes"] == ["group", "half"]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    frame = sample().with_columns(pl.col("group").replace({"a": "\x1b[31mred", "b": "<script>"}))
    frame.write_csv(path)
    done = audit(path, *FLAGS)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    refused(audit(path, *ANSWERS, "--group", "\x1b[31m", "--tolerance", "1"), r"'\x1b[31m'")


def test_a_reader_that_leaves_does_not_change_the_verdict(folder: Path) -> None:
    command = [*COMMAND, "audit", str(folder / "fair.csv"), *FLAGS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=120) == 0


def test_a_terminal_without_unicode(folder: Path) -> None:
    done = audit(folder / "fair.csv", *FLAGS, start=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")


def test_version_and_help() -> None:
    assert re.fullmatch(r"evenprune \d+\.\d+\.\d+\S*\n", called("--version").stdout)
    options = re.findall(r"^  (--[\w-]+)", audit("--help").stdout, flags=re.MULTILINE)
    assert {"--label", "--each", "--dense-loss", "--inconclusive", "--quiet"} <= set(options)


def test_sample_size() -> None:
    done = called("sample-size", "--groups", "5", "--tolerance", "0.02", "--disagreement", "0.1")
    assert done.returncode == 0
    each, total = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]{3,}\d", done.stdout))
    assert 2000 < each < 2500
    assert total == 5 * each
    wrong = called("sample-size", "--groups", "1", "--tolerance", "3", "--disagreement", "0.1")
    refused(wrong, "2 problems", "groups is 1", "tolerance is 3")


LOADED = """
import sys
from evenprune.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0, end.code
print([name for name in ("torch", "pandas", "altair", "sklearn", "pyarrow") if name in sys.modules])
"""


def test_an_audit_loads_no_torch(folder: Path) -> None:
    command = [sys.executable, "-c", LOADED, "audit", str(folder / "fair.csv"), *FLAGS, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_a_model_that_is_all_wrong_by_one_digit_does_not_pass(tmp_path: Path) -> None:
    """Class ids that a float takes for one: the pruned model names the other class in every row."""
    first, second = "12345678901234567890", "12345678901234567891"
    label = np.where(np.arange(3000) % 2 == 0, first, second)
    other = np.where(np.arange(3000) % 2 == 0, second, first)
    group = np.array(["a", "b", "c"])[np.arange(3000) % 3]
    frame = pl.DataFrame({"label": label, "dense": label, "pruned": other, "group": group})
    frame.write_csv(tmp_path / "t.csv")
    written = json.loads(audit(tmp_path / "t.csv", *FLAGS, "--json", "-").stdout)
    assert (written["overall"]["dense"], written["overall"]["pruned"]) == (1.0, 0.0)


# Bad usage


def test_everything_missing_is_said_at_once() -> None:
    flags = ["FILE", "--group", "--label", "--dense", "--pruned", "--tolerance"]
    refused(audit(), "6 problems", *(f"{flag} is missing" for flag in flags))


def test_kinds_of_answers_exclude_each_other(folder: Path) -> None:
    done = audit(folder / "fair.csv", *FLAGS, "--dense-loss", "loss")
    refused(done, "exclude each other", "no column 'loss'")


def test_many_problems_in_one_message(tmp_path: Path) -> None:
    frame = sample().with_columns(
        pl.when(pl.int_range(pl.len()) > 2).then(pl.col("label")).alias("label"), pl.lit("x").alias("group")
    )
    frame.write_csv(tmp_path / "t.csv")
    answers = ["--label", "label", "--dense", "Dense", "--pruned", "pruned", "--group", "group"]
    rest = ["--tolerance", "1.5", "--confidence", "2", "--json", tmp_path / "no" / "a.json"]
    done = audit(tmp_path / "t.csv", *answers, *rest)
    refused(
        done, "6 problems", "tolerance is 1.5", "confidence is 2", "the folder", "no column 'Dense'",
        "'label' has 3 missing values (NaN, null or empty), in rows 1, 2, 3", "one group only, 'x'",
    )  # fmt: skip


@pytest.mark.parametrize("tolerance", ["-0.1", "1.01", "nan", "inf"])
def test_tolerance_outside_its_range(folder: Path, tolerance: str) -> None:
    refused(
        audit(folder / "fair.csv", *ANSWERS, "--group", "group", f"--tolerance={tolerance}"), "within [0, 1]"
    )


def test_a_word_where_a_number_belongs(folder: Path) -> None:
    done = audit(folder / "fair.csv", *ANSWERS, "--group", "group", "--tolerance", "much")
    assert done.returncode == 2
    assert "Invalid value for '--tolerance'" in done.stderr


# Outputs that cannot be written


def test_outputs_are_checked_before_the_work(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((folder / "fair.csv").read_bytes())
    (tmp_path / "link.csv").symlink_to(path)
    before = path.read_bytes()
    done = audit(
        path,
        *FLAGS,
        "--json",
        tmp_path / "link.csv",
        "--html",
        tmp_path,
        "--markdown",
        tmp_path / "x" / "a.md",
    )
    refused(done, "3 problems", "--json", "same file as FILE", "it is a folder", "does not exist")
    twice = audit(path, *FLAGS, "--json", tmp_path / "a", "--html", tmp_path / "b" / ".." / "a")
    refused(twice, "same file as that of --json")
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.csv", "t.csv"]


def test_a_disk_that_is_full_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    outputs = ["--json", tmp_path / "a.json", "--html", tmp_path / "a.html", "--markdown", "/dev/full"]
    refused(audit(folder / "fair.csv", *FLAGS, *outputs), "Cannot write /dev/full", "No space left")
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


# Root may read and write everything, unless it gives up the right to (Linux: prctl, the bounding set).
AS_ANYBODY = """
import ctypes, os, sys
if os.geteuid() == 0 and any(ctypes.CDLL(None).prctl(24, right, 0, 0, 0) for right in (1, 2)):
    sys.exit(77)
os.execv(sys.executable, [sys.executable, "-m", "evenprune", *sys.argv[1:]])
"""


def test_no_permission(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((folder / "fair.csv").read_bytes())
    path.chmod(0)
    tmp_path.chmod(0o555)
    command = [
        sys.executable,
        "-c",
        AS_ANYBODY,
        "audit",
        str(path),
        *FLAGS,
        "--json",
        str(tmp_path / "a.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    tmp_path.chmod(0o755)
    if done.returncode == 77:
        pytest.skip("runs as root and cannot give up root's right to read everything")
    refused(done, "2 problems", "Permission denied", "is not writable")


# Files that cannot be read


def corrupt_parquet(path: Path) -> None:
    sample().write_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xaa" * 2000 + whole[2004:])


def cut_parquet(path: Path) -> None:
    sample().write_parquet(path)
    path.write_bytes(path.read_bytes()[:5000])


def cut_arrow(path: Path) -> None:
    sample().write_ipc(path)
    path.write_bytes(path.read_bytes()[:5000])


def unequal_npz(path: Path) -> None:
    arrays = {name: column.to_numpy() for name, column in sample().to_dict().items()}
    np.savez(path, **arrays | {"label": arrays["label"][:-1], "group": arrays["group"].astype(str)})


def pickled_npz(path: Path) -> None:
    np.savez(
        path,
        **{name: np.array(column.to_list(), dtype=object) for name, column in sample().to_dict().items()},
    )


def unequal_objects_npz(path: Path) -> None:
    arrays = {name: column.to_numpy() for name, column in sample().to_dict().items()}
    objects = {name: arrays[name].astype(object) for name in ("group", "pruned")}
    np.savez(path, **arrays | objects | {"label": arrays["label"][:-1], "dense": np.zeros((6000, 2, 2))})


def text(content: str | bytes) -> Callable[[Path], None]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda path: path.write_bytes(data) and None


HEADER = "label,dense,pruned,group\n"
BAD_FILES: dict[str, tuple[str, Callable[[Path], Any], list[str]]] = {
    "not there": ("t.csv", lambda path: None, ["No such file"]),
    "folder": ("t.csv", lambda path: path.mkdir(), ["is a folder"]),
    "empty": ("t.csv", text(""), ["is empty"]),
    "blank": ("t.csv", text("\n \n"), ["is empty"]),
    "header only": ("t.csv", text(HEADER), ["has columns, but no rows"]),
    "missing column": ("t.csv", text(HEADER.upper() + "1,1,1,a\n"), ["did you mean 'LABEL'", "'GROUP'"]),
    "null labels": ("t.csv", text(HEADER + "1,1,1,a\n,1,1,a\nNaN,0,1,b\n"), ["'label' has 2", "2, 3"]),
    "null predictions": ("t.csv", text(HEADER + "1,,1,a\n1,1,1,b\n"), ["'dense' has a missing", "row 1"]),
    "nothing shared": ("t.csv", text(HEADER + "1,5,6,a\n2,6,7,b\n"), ["(1, 2)", "(5, 6)", "(6, 7)"]),
    "text against numbers": ("t.csv", text(HEADER + "cat,1,1,a\ndog,2,2,b\n"), ["'cat', 'dog'", "1, 2"]),
    "one group": ("t.csv", text(HEADER + "1,1,1,a\n2,1,1,a\n"), ["one group only, 'a'"]),
    "too many fields": ("t.csv", text(HEADER + "1,1,1,a\n1,1,1,b,c\n"), ["more fields than the header"]),
    "bad UTF-8": ("t.csv", text(HEADER.encode() + b"1,1,1,a\n1,1,1,\xff\n"), ["line 3 is not UTF-8"]),
    "bad UTF-8 header": ("t.csv", text(b"label,dense,pruned,group,\xe9\n1,1,1,a,1\n"), ["line 1 is not"]),
    "UTF-16": ("t.csv", text((HEADER + "1,1,1,a\n").encode("utf-16")), ["UTF-16"]),
    "corrupt Parquet": ("t.parquet", corrupt_parquet, ["cannot be read"]),
    "cut Parquet": ("t.parquet", cut_parquet, ["cannot be read"]),
    "cut Arrow": ("t.arrow", cut_arrow, ["cannot be read"]),
    "no Parquet": ("t.parquet", text(HEADER), ["named like a parquet file"]),
    "broken JSON": ("t.jsonl", text('{"label": 1\n'), ["cannot be read"]),
    "JSON array": ("t.json", text('[{"label": 1}]'), ["one object a line"]),
    "unequal lengths": ("t.npz", unequal_npz, ["unequal lengths", "'label' 5,999", "'dense' 6,000"]),
    "pickled objects": ("t.npz", pickled_npz, ["Python objects, which are never loaded"]),
    "bad arrays": (
        "t.npz",
        unequal_objects_npz,
        [
            "4 problems", "'pruned' of", "'group' of", "Python objects", "'dense' of", "shape [6000, 2, 2]",
            "unequal lengths: 'label' 5,999, 'dense' 6,000, 'pruned' 6,000, 'group' 6,000",
        ],
    ),
    "no NPZ": ("t.npz", text(b"PK\x03\x04 nonsense"), ["cannot be read"]),
    "unknown": ("t.xyz", text("hello world\n"), ["no table that is known here", "Parquet", "NPZ"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files(tmp_path: Path, case: str) -> None:
    name, make, said = BAD_FILES[case]
    make(tmp_path / name)
    done = audit(tmp_path / name, *FLAGS, "--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    refused(done, *said)
    assert not list(tmp_path.glob("*a.*")) + list(tmp_path.glob(".*"))


# A process starts with the peak memory of the one that forked it, so a small one must start the command.
LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.parametrize("start", [b"", HEADER.encode() + b"1,1,1,a\n"], ids=["zeros", "like a table"])
def test_ten_gigabytes_that_are_no_table(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "big.csv"
    path.write_bytes(start)
    os.truncate(path, 10 * 2**30)  # takes no room on the disk
    command = [sys.executable, "-c", LAUNCHER, *COMMAND, "audit", str(path), *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    code, memory = map(int, done.stdout.split())
    assert code == 2
    assert "is no table: it holds binary data" in done.stderr
    assert memory < 400 * 2**20

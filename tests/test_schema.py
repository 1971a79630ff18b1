"""The documented schema fits what the command really writes, and nothing else."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest

from tests import audit_documents
from tests.commands import called

SCHEMA = json.loads((Path(__file__).parent.parent / "docs" / "audit.schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

KINDS = {
    "pass": "--label y --dense d --pruned d2 --group g --tolerance 0.5",
    "fail": "--label y --dense d --pruned p --group g --tolerance 0",
    "inconclusive": "--label y --dense d --pruned p --group h --tolerance 0.03",
    "several": "--label y --dense d --pruned p --pruned d2 --group g --group h --tolerance 0.02",
    "each": "--label y --dense d --pruned p --group g --group h --each --tolerance 0.02",
    "score": "--dense-score s --pruned-score t --group g --tolerance 0.02",
    "loss": "--dense-loss s --pruned-loss t --group h --tolerance 2.5",
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    n = 4000
    y, g = rng.integers(0, 4, n), rng.integers(0, 3, n)
    d = np.where(rng.random(n) < 0.9, y, (y + 1) % 4)
    p = np.where(rng.random(n) < np.array([0.02, 0.02, 0.3])[g], (d + 1) % 4, d)
    h = np.array(["x", "y", ""])[np.minimum(rng.integers(0, 40, n), 2)]
    d2 = np.where(rng.random(n) < 0.01, (d + 1) % 4, d)
    path = tmp_path_factory.mktemp("schema") / "t.csv"
    columns = {"y": y, "d": d, "p": p, "d2": d2, "g": g, "h": h, "s": rng.random(n), "t": rng.random(n)}
    pl.DataFrame(columns).write_csv(path)
    return path


def document(table: Path, kind: str) -> dict[str, Any]:
    done = called("audit", table, *KINDS[kind].split(), "--json", "-")
    assert not done.stderr
    written: dict[str, Any] = json.loads(done.stdout, parse_constant=lambda c: pytest.fail(f"{c} is no JSON"))
    return written


@pytest.mark.parametrize("kind", KINDS)
def test_real_output_fits(table: Path, kind: str) -> None:
    written = document(table, kind)
    VALIDATOR.validate(written)
    if kind in ("pass", "fail", "inconclusive"):
        assert written["verdict"] == kind
    assert ("models" in written) == (kind == "several")


def test_the_schema_is_one_and_refuses_other_documents(table: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    written = document(table, "fail")
    for key in written:
        lacking = {k: v for k, v in written.items() if k != key}
        assert not VALIDATOR.is_valid(lacking), key
        assert not VALIDATOR.is_valid(written | {key: {"no": "such thing"}}), key
    assert not VALIDATOR.is_valid(written | {"more": 1})
    changed = copy.deepcopy(written)
    changed["groups"][0]["more"] = 1
    assert not VALIDATOR.is_valid(changed)


def keys_of(schema: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties.items()
        for part in schema.values():
            yield from keys_of(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from keys_of(part)


def test_every_key_is_described() -> None:
    described = dict(keys_of(SCHEMA))
    assert {"verdict", "excess_gap", "noise_floor", "settle", "comparisons"} <= described.keys()
    for key, schema in keys_of(SCHEMA):
        assert schema["description"].endswith("."), key


def test_columns_fit() -> None:
    written = audit_documents.with_columns(audit_documents.document(6))
    VALIDATOR.validate(written)
    several = audit_documents.side_by_side(6, models={"a": "fail", "b": "pass"})
    VALIDATOR.validate(audit_documents.with_columns(several))
    written["columns"]["tiny"]["Asian"] = "small"
    assert not VALIDATOR.is_valid(written)
    assert not VALIDATOR.is_valid(written | {"columns": {"tiny": 1.0}})


def test_a_subject_and_marks_of_columns_fit(table: Path) -> None:
    written = document(table, "pass")
    group = written["groups"][0]["group"]
    more = {"subject": "CEAG · test data", "columns": {"c": {group: 1.0}}, "approximate": {"c": [group]}}
    VALIDATOR.validate(written | more)
    assert not VALIDATOR.is_valid(written | {"approximate": {"c": group}})

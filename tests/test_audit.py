"""The audit from arrays to verdict: hand-computed cases, invariants, and every kind of bad input."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import evenprune
from evenprune import Audit, GroupHarmed, InputProblems
from evenprune.verdict import Approximate
from tests.twins import audit as twin


def samples(sizes, broke, fixed, dense_right):
    """dense_correct, pruned_correct and groups with these counts per group."""
    dense, pruned, group = [], [], []
    for name, n, b, c, right in zip("abcdefghij", sizes, broke, fixed, dense_right, strict=False):
        dense += [True] * right + [False] * (n - right)
        pruned += [False] * b + [True] * (right - b) + [True] * c + [False] * (n - right - c)
        group += [name] * n
    return {"dense_correct": dense, "pruned_correct": pruned, "groups": group}


def random_samples(seed, n=3000, groups=4, harm=0.0):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    labels = rng.integers(0, 5, n)
    dense = np.where(rng.random(n) < 0.9, labels, (labels + 1) % 5)
    rate = np.where(group == 0, 0.05 + harm, 0.05)
    pruned = np.where(rng.random(n) < rate, (dense + 1) % 5, dense)
    return {"labels": labels, "dense": dense, "pruned": pruned, "groups": group}


def test_by_hand():
    # a: 100 samples, 10 broke, 2 fixed -> Δ = 8 %;  b: 300 samples, 6 broke, 6 fixed -> Δ = 0;  overall 2 %
    audit = evenprune.audit(**samples([100, 300], [10, 6], [2, 6], [90, 240]), tolerance=0.02)
    a, b = audit.groups
    assert (a.group, a.samples, a.broke, a.fixed) == ("a", 100, 10, 2)
    assert (a.dense, a.pruned) == (0.90, 0.82)
    assert a.gap == pytest.approx(0.08)
    assert a.excess_gap == pytest.approx(0.06)
    assert b.excess_gap == pytest.approx(-0.02)
    assert a.disagreement == pytest.approx(0.12)
    assert audit.overall.gap == pytest.approx(0.02)
    assert audit.pairwise_disparity == pytest.approx(0.08)
    assert audit.max_excess_gap.group == audit.worst.group == "a"
    assert audit.max_excess_gap.estimate == pytest.approx(0.06)
    assert audit.samples == 400
    lower, upper = twin.mover((10, 2, 100), (6, 6, 300), 1.6448536)
    assert a.test_upper == pytest.approx(upper, abs=1e-6)
    assert a.test_lower < lower  # simultaneous, so wider


def test_verdicts():
    big = [4000] * 4
    harmless = samples(big, [40] * 4, [40] * 4, [3600] * 4)
    assert evenprune.audit(**harmless, tolerance=0.02).verdict == "pass"
    harmed = samples(big, [400, 40, 40, 40], [40] * 4, [3600] * 4)
    failed = evenprune.audit(**harmed, tolerance=0.02)
    assert (failed.verdict, failed.violations) == ("fail", ("a",))
    assert failed.settle is None
    unclear = evenprune.audit(**samples([100] * 4, [5, 4, 4, 4], [4] * 4, [90] * 4), tolerance=0.02)
    assert unclear.verdict == "inconclusive"
    assert unclear.settle is not None
    assert unclear.settle.samples_per_group > 100


def test_groups_that_fell_in_absolute_terms():
    """Everybody lost alike: no excess gap, and yet all fell."""
    audit = evenprune.audit(**samples([2000] * 3, [200] * 3, [10] * 3, [1800] * 3), tolerance=0.03)
    assert audit.verdict == "pass"
    assert audit.fell == ("a", "b", "c")


def test_the_sample_that_is_asked_for_settles_it():
    audit = evenprune.audit(**samples([200] * 4, [6] * 4, [6] * 4, [180] * 4), tolerance=0.02)
    assert audit.verdict == "inconclusive"
    factor = -(-audit.settle.samples // audit.samples)
    bigger = samples([200 * factor] * 4, [6 * factor] * 4, [6 * factor] * 4, [180 * factor] * 4)
    assert evenprune.audit(**bigger, tolerance=0.02).verdict == audit.settle.verdict == "pass"


def test_tiny_groups_are_listed_and_keep_the_audit_from_passing():
    audit = evenprune.audit(**samples([5000, 5000, 4], [5, 5, 0], [5, 5, 0], [4500, 4500, 4]), tolerance=1.0)
    assert [g.tiny for g in audit.groups] == [False, False, True]
    assert audit.verdict == "inconclusive"
    assert "fewer than 10 samples" in audit.notes[0]
    relaxed = samples([5000, 5000, 4], [5, 5, 0], [5, 5, 0], [4500, 4500, 4])
    assert evenprune.audit(**relaxed, tolerance=1.0, min_samples=1).verdict == "pass"


def test_missing_group_labels_are_a_group_of_their_own_or_dropped():
    data = random_samples(0)
    groups = data.pop("groups").astype(float)
    groups[:100] = np.nan
    audit = evenprune.audit(**data, groups=groups, tolerance=0.05)
    assert audit["(missing)"].samples == 100
    assert any("no group label" in note for note in audit.notes)
    dropped = evenprune.audit(**data, groups=groups, tolerance=0.05, missing="drop")
    assert dropped.samples == 2900
    assert "100 samples" in dropped.notes[0]


def test_scores_are_read_by_their_largest_column():
    data = random_samples(1)
    expected = evenprune.audit(**data, tolerance=0.02)
    eye = np.eye(5)
    scored = data | {"dense": eye[data["dense"]], "pruned": torch.tensor(eye[data["pruned"]])}
    assert evenprune.audit(**scored, tolerance=0.02) == expected


@pytest.mark.parametrize("wrap", [list, pd.Series, pl.Series, torch.as_tensor], ids=lambda f: f.__module__)
def test_any_array_type_gives_the_same_audit(wrap):
    data = random_samples(2)
    expected = evenprune.audit(**data, tolerance=0.02)
    assert evenprune.audit(**{k: wrap(v) for k, v in data.items()}, tolerance=0.02) == expected


def test_class_ids_may_be_text():
    data = random_samples(3)
    names = np.array(["cat", "dog", "fox", "hen", "owl"])
    worded = data | {k: names[data[k]] for k in ("labels", "dense", "pruned")}
    assert evenprune.audit(**worded, tolerance=0.02) == evenprune.audit(**data, tolerance=0.02)


def test_known_correctness_is_never_guessed_from_values():
    data = random_samples(4)
    right = {f"{model}_correct": data[model] == data["labels"] for model in ("dense", "pruned")}
    known = evenprune.audit(**right, groups=data["groups"], tolerance=0.02)
    assert known == evenprune.audit(**data, tolerance=0.02)
    # 0/1 *predictions* are class ids, not correctness
    ids = {"labels": [0, 0, 1, 1] * 50, "dense": [0, 0, 1, 1] * 50, "pruned": [0] * 200}
    audit = evenprune.audit(**ids, groups=["x", "y"] * 100, tolerance=0.1)
    assert audit.overall.dense == 1.0


def test_row_order_and_names_change_nothing():
    data = random_samples(5, harm=0.05)
    expected = evenprune.audit(**data, tolerance=0.02)
    order = np.random.default_rng(0).permutation(3000)
    assert evenprune.audit(**{k: v[order] for k, v in data.items()}, tolerance=0.02) == expected
    rename = np.array(["zebra", "ant", "mole", "cow"])
    renamed = evenprune.audit(**(data | {"groups": rename[data["groups"]]}), tolerance=0.02)
    for i, name in enumerate(rename):
        old, new = expected[str(i)], renamed[name]
        assert (old.lower, old.upper, old.test_upper) == (new.lower, new.upper, new.test_upper)
    assert renamed.noise_floor == expected.noise_floor
    assert renamed.max_excess_gap.debiased == expected.max_excess_gap.debiased


def test_two_identical_files_halve_the_variances():
    data = random_samples(6)
    once = evenprune.audit(**data, tolerance=0.02)
    twice = evenprune.audit(**{k: np.concatenate([v, v]) for k, v in data.items()}, tolerance=0.02)
    for a, b in zip(once.groups, twice.groups, strict=True):
        assert a.excess_gap == pytest.approx(b.excess_gap)
        assert (b.upper - b.lower) / (a.upper - a.lower) == pytest.approx(0.5**0.5, rel=0.03)


rows = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.booleans()), min_size=4, max_size=150
).filter(lambda r: len({g for g, _, _ in r}) > 1)


@settings(max_examples=60)
@given(rows, st.floats(0, 0.5))
def test_invariants(rows, tolerance):
    group, dense, pruned = (list(column) for column in zip(*rows, strict=True))
    audit = evenprune.audit(dense_correct=dense, pruned_correct=pruned, groups=group, tolerance=tolerance)
    expected = twin.rows_to_counts(rows)
    excess = twin.excess_gaps(expected)
    for g in audit.groups:
        assert (g.samples, g.broke, g.fixed) == expected[g.group][:3]
        assert g.excess_gap == pytest.approx(excess[g.group])
        assert g.lower <= g.test_lower + 1e-9
        assert g.test_lower <= g.excess_gap + 1e-9
        assert g.excess_gap <= g.test_upper + 1e-9
        assert g.gap_lower <= g.gap + 1e-9 <= g.gap_upper + 2e-9
    assert audit.pairwise_disparity == pytest.approx(twin.pairwise_disparity(expected))
    assert audit.pairwise_disparity >= 0
    assert sum(g.samples * g.excess_gap for g in audit.groups) == pytest.approx(0, abs=1e-9)  # Σπψ = 0
    assert audit.max_excess_gap.estimate >= -1e-12
    assert (audit.verdict == "fail") == bool(audit.violations) == (audit.max_excess_gap.lower > tolerance)
    if audit.verdict == "pass":
        assert audit.max_excess_gap.upper <= tolerance
    for floor in audit.noise_floor.values():
        assert floor["low"] <= floor["mean"] + 1e-9 <= floor["high"] + 2e-9
    assert Audit.from_dict(json.loads(json.dumps(audit.to_dict()))) == audit


def test_a_larger_tolerance_never_makes_the_verdict_worse():
    data = random_samples(7, harm=0.04)
    order = {"fail": 0, "inconclusive": 1, "pass": 2}
    ranks = [order[evenprune.audit(**data, tolerance=t).verdict] for t in np.linspace(0, 0.2, 15)]
    assert ranks == sorted(ranks)
    assert {ranks[0], ranks[-1]} == {0, 2}


def test_each_audits_attributes_and_intersections_jointly():
    data = random_samples(8)
    rng = np.random.default_rng(0)
    columns = {"race": np.array(["A", "B"])[data["groups"] % 2], "sex": rng.choice(["m", "f"], 3000)}
    audit = evenprune.audit(**(data | {"groups": columns}), tolerance=0.02, each=True)
    assert [g.group for g in audit.groups][:4] == ["race=A", "race=B", "sex=f", "sex=m"]
    assert len(audit.groups) == 8
    alone = evenprune.audit(**(data | {"groups": columns["race"]}), tolerance=0.02)
    assert audit["race=A"].excess_gap == pytest.approx(alone["A"].excess_gap)
    assert audit["race=A"].test_upper == pytest.approx(alone["A"].test_upper)  # pointwise
    assert audit["race=A"].lower < alone["A"].lower  # simultaneous over more groups


def test_check_raises_naming_groups_and_amounts():
    audit = evenprune.audit(**random_samples(9, harm=0.2), tolerance=0.02)
    amounts = r"- 0: \d+\.\d\d points beyond the average, \d+\.\d\d points beyond the tolerance"
    with pytest.raises(GroupHarmed, match=amounts):
        audit.check()
    assert evenprune.audit(**random_samples(9), tolerance=0.5).check() is None
    unclear = evenprune.audit(**random_samples(9, n=200), tolerance=0.02)
    with pytest.raises(GroupHarmed, match="Inconclusive"):
        unclear.check()
    unclear.check(inconclusive="pass")


def test_several_models_are_paired_per_sample():
    data = random_samples(10, harm=0.2)
    rng = np.random.default_rng(1)
    better = np.where(rng.random(3000) < 0.01, (data["dense"] + 1) % 5, data["dense"])
    both = evenprune.audit(**(data | {"pruned": {"nft": data["pruned"], "ceag": better}}), tolerance=0.05)
    assert both.verdict == "fail"
    assert both.model == "nft"
    assert list(both.models) == ["nft", "ceag"]
    assert both.models["nft"].groups == evenprune.audit(**data, tolerance=0.05).groups
    (pair,) = both.comparisons
    accuracy = {m: np.mean(p == data["labels"]) for m, p in (("nft", data["pruned"]), ("ceag", better))}
    assert pair.accuracy.estimate == pytest.approx(accuracy["ceag"] - accuracy["nft"])
    assert 0 < pair.accuracy.lower < pair.accuracy.estimate < pair.accuracy.upper
    assert pair.max_excess_gap.upper < 0
    assert "0" in pair.better
    assert pair.worse == ()
    assert Audit.from_dict(both.to_dict()) == both


def test_identical_models_do_not_differ():
    """Paired: two models that agree on every sample differ by nothing, whatever the sample's noise."""
    data = random_samples(11, n=400)
    both = evenprune.audit(**(data | {"pruned": {"x": data["pruned"], "y": data["pruned"]}}), tolerance=0.05)
    (pair,) = both.comparisons
    assert pair.accuracy.estimate == 0
    assert pair.accuracy.upper < 0.02
    assert abs(pair.max_excess_gap.estimate) < 1e-12
    assert pair.better == pair.worse == ()


@pytest.mark.parametrize(("measure", "tolerance"), [("score", 0.05), ("loss", 0.4)])
def test_scores_and_losses(measure, tolerance):
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 3000)
    dense = rng.random(3000)
    worse = -0.2 if measure == "score" else 0.8
    pruned = np.clip(dense + np.where(group == 1, worse, 0.0) + rng.normal(0, 0.05, 3000), 0, None)
    pruned = np.clip(pruned, 0, 1) if measure == "score" else pruned
    audit = evenprune.audit(dense=dense, pruned=pruned, groups=group, measure=measure, tolerance=tolerance)
    assert audit.limits == "bootstrap"
    assert "paired bootstrap" in str(audit)
    assert audit.violations == ("1",)
    sign = 1 if measure == "score" else -1
    gaps = [sign * (dense - pruned)[group == g].mean() for g in range(3)]
    assert [g.gap for g in audit.groups] == pytest.approx(gaps)
    assert audit["0"].dense == pytest.approx(dense[group == 0].mean())
    order = rng.permutation(3000)
    again = evenprune.audit(
        dense=dense[order], pruned=pruned[order], groups=group[order], measure=measure, tolerance=tolerance
    )
    assert [g.lower for g in again.groups] == pytest.approx([g.lower for g in audit.groups], abs=1e-9)
    several = evenprune.audit(
        dense=dense, pruned={"a": pruned, "b": dense}, groups=group, measure=measure, tolerance=tolerance
    )
    assert several.comparisons[0].better[0] == "1" or "1" in several.comparisons[0].better


def problems(**changes):
    data = random_samples(12, n=200) | {"tolerance": 0.02} | changes
    with pytest.raises(InputProblems) as caught:
        evenprune.audit(**data)
    return caught.value.problems


def test_every_problem_is_listed_at_once():
    labels = np.array([0.0, np.nan] * 100)
    found = problems(labels=labels, pruned=[1] * 199, groups={"a": [1] * 200}, tolerance=3, confidence=0.2)
    text = "\n".join(found)
    assert "tolerance is 3" in text
    assert "confidence is 0.2" in text
    assert "labels: 100 of 200 values are missing" in text
    assert "pruned has 199" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": ["x"] * 200}, "one group only"),
        ({"groups": {}}, "groups is empty"),
        ({"groups": np.arange(200)}, "200 groups of 200 samples"),
        ({"groups": np.zeros((200, 2))}, "shape"),
        ({"dense": ["cat"] * 200}, "same kind"),
        ({"dense": np.full(200, 77)}, "no value of dense"),
        ({"dense": np.full((200, 3), 0.5)}, "outside the 3 classes"),
        ({"dense": np.full((200, 1), 0.5)}, "2 classes or more"),
        ({"dense": np.full((200, 5), np.nan)}, "missing or not finite"),
        ({"labels": np.zeros((200, 2))}, "one class id per sample"),
        ({"labels": None}, "takes labels="),
        ({"dense_correct": [True] * 200}, "known correctness"),
        ({"measure": "auc"}, "choose one of"),
        ({"measure": "score"}, "one number a sample"),
        ({"pruned": {}}, "0 pruned models"),
        ({"pruned": {str(i): [0] * 200 for i in range(31)}}, "31 pruned models"),
        ({"tolerance": -0.1}, "tolerance is -0.1"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"missing": "ignore"}, "missing is 'ignore'"),
        ({"min_samples": 0}, "min_samples is 0"),
        ({k: [] for k in ("labels", "dense", "pruned", "groups")}, "no samples"),
        ({"each": True, "groups": {"a": [1, 2] * 100, "b": [1] * 200}}, "one group only in 'b'"),
        ({"tolerance": "0.02"}, "tolerance is '0.02': it must be a number"),
        ({"tolerance": None, "confidence": None}, "confidence is None"),
        ({"min_samples": "many"}, "whole number"),
        ({"dense": 3}, "dense is 3: give one value per sample"),
        ({"pruned": {"a": None}}, "pruned['a'] is None"),
        ({"groups": [[1], [2]] * 100}, "shape"),
        ({"groups": {"a": [{}] * 200}}, "plain value per sample"),
        ({"groups": {1: [0, 1] * 100, "1": [0, 1] * 100}}, "same name"),
        ({"pruned": pd.DataFrame({"x": [0] * 200, "y": [1] * 200})}, "pruned is a table"),
        ({"labels": np.full(200, 2**60), "dense": np.full(200, 2.0**60)}, "beyond 2^53"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_bad_input(changes, message):
    assert any(message in problem for problem in problems(**changes)), problems(**changes)


def test_known_correctness_and_scores_are_checked():
    groups = [0, 1] * 20
    with pytest.raises(InputProblems, match="only true/false"):
        evenprune.audit(dense_correct=[2] * 40, pruned_correct=[1] * 40, groups=groups, tolerance=0.1)
    with pytest.raises(InputProblems, match=r"outside \[0, 1\]"):
        evenprune.audit(dense=[1.5] * 40, pruned=[1.0] * 40, groups=groups, measure="score", tolerance=0.1)

    with pytest.raises(InputProblems, match="too large to average"):
        evenprune.audit(dense=[1e200] * 40, pruned=[1.0] * 40, groups=groups, measure="loss", tolerance=0.1)


def test_problems_of_groups_and_of_labels_come_together():
    found = problems(labels=[np.nan] + [0.0] * 199, groups=["x"] * 200)
    assert ["missing" in found[0], "one group only" in found[1]] == [True, True]


def test_infinite_logits_have_a_largest():
    data = random_samples(14)
    logits = np.where(np.eye(5)[data["dense"]] == 1, 0.0, -np.inf)
    expected = evenprune.audit(**data, tolerance=0.02)
    assert evenprune.audit(**(data | {"dense": logits}), tolerance=0.02) == expected


def test_many_columns_do_not_overflow():
    rng = np.random.default_rng(0)
    data = random_samples(15, n=400)
    columns = {f"c{i}": np.where(np.arange(400) < 200, i, rng.integers(0, 2) + 300) for i in range(12)}
    assert len(evenprune.audit(**(data | {"groups": columns}), tolerance=0.02).groups) == 2


def test_settle_never_asks_for_fewer_samples_than_a_group_needs_to_be_judged():
    audit = evenprune.audit(**samples([1000, 1000, 5], [5, 5, 0], [5, 5, 0], [900, 900, 5]), tolerance=0.5)
    assert audit.verdict == "inconclusive"
    assert audit.settle.group == "c"
    assert audit.settle.samples_per_group >= 10
    assert audit.settle.samples > audit.samples


@pytest.mark.parametrize("samples_per_group", [100, 3000])
def test_scores_that_change_alike_or_not_at_all(samples_per_group):
    """Nothing varies within a group: the limits still have a width, and nothing divides by zero."""
    group = np.repeat([0, 1], samples_per_group)
    dense = np.ones(group.size)
    for pruned in (dense, dense - group):
        audit = evenprune.audit(dense=dense, pruned=pruned, groups=group, measure="score", tolerance=0.02)
        assert all(g.lower < g.excess_gap < g.upper for g in audit.groups)


def test_from_dict_refuses_other_documents():
    with pytest.raises(ValueError, match="not an audit"):
        Audit.from_dict({"schema": "something/2"})


def test_unknown_group_is_named():
    with pytest.raises(KeyError, match="no group 'z'"):
        evenprune.audit(**random_samples(13), tolerance=0.1)["z"]


def test_columns_go_with_the_audit_and_change_nothing_else():
    plain = evenprune.audit(**random_samples(14), tolerance=0.02)
    given_ = {"gradient norm": {0: 1.5, "1": np.float32(2), 2: np.nan}, "λ": {"0": -3, "3": None}}
    audit = evenprune.audit(**random_samples(14), tolerance=0.02, columns=given_)
    assert audit.columns == {"gradient norm": {"0": 1.5, "1": 2.0, "2": None}, "λ": {"0": -3.0, "3": None}}
    assert "columns" not in plain.to_dict()
    assert audit.to_dict() == plain.to_dict() | {"columns": audit.columns}
    assert Audit.from_dict(json.loads(json.dumps(audit.to_dict()))) == audit
    assert Audit.from_dict(plain.to_dict()).columns == {}
    assert "gradient norm" in str(audit)
    assert "gradient norm" not in str(plain)


def test_columns_reach_every_model():
    data = random_samples(15)
    data["pruned"] = {"one": data["pruned"], "two": data["dense"]}
    audit = evenprune.audit(**data, tolerance=0.02, columns={"c": {"0": 1.0}})
    assert [one.columns for one in (audit, *audit.models.values())] == [{"c": {"0": 1.0}}] * 3
    assert Audit.from_dict(audit.to_dict()) == audit


def test_columns_of_groups_that_do_not_occur_are_noted():
    audit = evenprune.audit(**random_samples(16), tolerance=0.02, columns={"c": {"0": 1.0, "z": 2.0}})
    assert audit.columns == {"c": {"0": 1.0}}
    assert audit.notes[0] == "Columns were given for groups that have no samples here: “z”."


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([1, 2], "columns must be a mapping"),
        ({"c": [1, 2]}, "columns must be a mapping"),
        ({"c": {"0": "many", "1": True}}, "columns['c']['0'] is 'many' (and 1 more): give a number, or None"),
        ({"c": {"0": 1, 0: 2}}, "columns['c'] has keys that read the same: '0'"),
        ({"1": {"0": 1}, 1: {"0": 2}}, "columns has keys that read the same: '1'"),
        ({" ": {"0": 1}}, "columns has an empty title"),
        ({"c": {"x": 1, "y": 2}}, "columns['c'] names no group of this audit; it has '0'"),
    ],
)
def test_bad_columns(columns, message):
    assert any(problem.startswith(message) for problem in problems(columns=columns))


def test_bad_columns_are_listed_with_the_other_problems():
    found = problems(columns={"c": {"0": "x"}}, tolerance=3, groups=[1] * 200)
    assert len(found) == 3


def test_numbers_that_did_not_converge_are_marked_and_noted_and_read_back():
    columns = {"curvature": {"a": Approximate(2.5), "b": 1.0}, "norm": {"a": 1.0}}
    found = evenprune.audit(
        dense_correct=[1] * 40,
        pruned_correct=[1, 0] * 20,
        groups=["a", "b"] * 20,
        tolerance=0.5,
        columns=columns,
    )
    document = found.to_dict()
    assert document["approximate"] == {"curvature": ["a"]}
    assert document["columns"] == {"curvature": {"a": 2.5, "b": 1.0}, "norm": {"a": 1.0}}
    assert (
        found.notes[0] == "In the column “curvature” ≈ marks 1 number whose computation did not converge: a."
    )
    again = Audit.from_dict(json.loads(json.dumps(document)))
    assert again == found
    assert again.to_dict() == document


def test_a_subject_is_kept():
    found = evenprune.audit(
        dense_correct=[1] * 40, pruned_correct=[1, 0] * 20, groups=["a", "b"] * 20, tolerance=0.5
    )
    assert "subject" not in found.to_dict()
    named = replace(found, subject="CEAG · test data")
    assert Audit.from_dict(named.to_dict()) == named
    assert str(named) == "CEAG · test data\n\n" + str(found)

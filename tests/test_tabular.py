"""Tables to inputs: standardised by the training rows, one input a category, all problems at once."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import evenprune
from evenprune import groups, methods
from evenprune.data import tabular
from evenprune.data.tabular import MOST_CATEGORIES, Tabular
from evenprune.models import mlp
from evenprune.recipe import Recipe
from evenprune.tally import InputProblems

ROWS: dict[str, list[Any]] = {
    "age": [20, 30, 40, None, 50, 60, 70, 35],
    "income": [1.5, 2.5, 2.5, 3.5, 1.0, 9.0, None, 0.5],
    "job": ["clerk", "smith", "clerk", None, "smith", "clerk", "baker", "smith"],
    "member": [True, False, True, True, False, False, True, False],
    "sex": ["f", "m", "f", "m", "f", "m", "f", "m"],
    "result": ["yes", "no", "yes", "no", "yes", "no", "yes", "no"],
    "split": ["train"] * 6 + ["test"] * 2,
}


def written(folder: Path, rows: dict[str, list[Any]], form: str = "csv") -> Path:
    frame, path = pl.DataFrame(rows, strict=False), folder / f"people.{form}"
    if form == "npz":
        np.savez(path, **{name: np.array([np.nan if v is None else v for v in rows[name]]) for name in rows})
    elif form == "jsonl":
        lines = [json.dumps(dict(zip(rows, row, strict=True))) for row in zip(*rows.values(), strict=True)]
        path.write_text("\n".join(lines) + "\n")
    else:
        writers = {
            "csv": frame.write_csv,
            "tsv": lambda at: frame.write_csv(at, separator="\t"),
            "parquet": frame.write_parquet,
            "arrow": frame.write_ipc,
        }
        writers[form](path)
    return path


def load(folder: Path, rows: dict[str, list[Any]], form: str = "csv", **told: Any) -> Tabular:
    return tabular.load(written(folder, rows, form), **({"label": "result", "groups": ["sex"]} | told))


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "arrow", "jsonl"])
def test_a_table_becomes_inputs_whatever_its_form(tmp_path: Path, form: str) -> None:
    data = load(tmp_path, ROWS, form)
    assert data.description.features == (
        "age", "age (missing)", "income", "job=clerk", "job=smith", "job=(missing)", "member",
    )  # fmt: skip
    assert data.classes == data.description.classes == ("no", "yes")
    assert data.counted
    inputs, labels, columns = data["train"]
    assert inputs.dtype == np.float32
    assert labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert columns["sex"].tolist() == ["f", "m"] * 3
    ages = np.array([20, 30, 40, 40, 50, 60.0])  # the missing one is the mean of the others
    expected = (ages - 40) / np.std([20, 30, 40, 50, 60])
    assert inputs[:, 0] == pytest.approx(expected, abs=1e-6)
    assert inputs[:, 1].tolist() == [0, 0, 0, 1, 0, 0]
    assert inputs[:, 3:6].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert np.unique(inputs[:, 6]) == pytest.approx([-1, 1], abs=1e-6)  # three of six are members
    tested, labels, _ = data["test"]
    assert labels.tolist() == [1, 0]
    assert tested[0, 3:6].tolist() == [0, 0, 0]  # a baker, whom the training rows do not know
    assert tested[0, 2] == 0  # missing in the test rows alone: the mean, and no input of its own
    scale = data.description.numeric["age"]
    assert (scale.mean, scale.indicator) == (40, True)
    assert data.description.categories == {"job": ("clerk", "smith", None)}
    assert "6 train, 2 test samples of 2 classes, 7 inputs" in repr(data)


def test_numbers_of_an_npz(tmp_path: Path) -> None:
    rows = {"x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "kind": [0, 1] * 3, "y": [0, 1, 1, 0, 1, 0]}
    data = load(tmp_path, rows, "npz", label="y", groups="kind", test_share=0.5)
    assert data.description.features == ("x",)
    assert len(data["train"][1]) + len(data["test"][1]) == 6
    assert not data.counted


def test_listed_columns_alone_are_inputs_and_a_group_may_be_one(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS, categorical=["sex", "age"])
    assert data.description.features[:1] == ("age=20",)
    assert data.description.features[-2:] == ("sex=f", "sex=m")
    assert load(tmp_path, ROWS, numeric=["income"]).description.features == ("income",)
    assert load(tmp_path, ROWS, numeric=["income"], categorical=[]).description.features == ("income",)


def test_columns_are_ignored_and_classes_ordered_as_asked(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS, ignore=["job", "member"], classes=["yes", "no"])
    assert data.description.features == ("age", "age (missing)", "income")
    assert data.classes == data.description.classes == ("yes", "no")
    assert not data.counted
    assert data["train"][1].tolist() == [0, 1, 0, 1, 0, 1]


def test_groups_and_the_label_are_no_inputs_unless_listed(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS, groups=["sex", "job"])
    assert not any("sex" in f or "job" in f or "result" in f for f in data.description.features)
    assert list(data["train"][2]) == ["sex", "job"]
    assert data["train"][2]["job"].tolist()[3] is None


def test_the_label_itself_may_be_the_group(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS, groups=["result"])
    assert data["train"][2]["result"].tolist() == ["yes", "no"] * 3


def test_a_numeric_group_goes_into_ranges(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS, groups=["age"])
    ages = groups.binned(data["train"][2]["age"], edges=[30, 50])
    assert ages.tolist() == ["under 30", "30–49", "30–49", None, "50 and over", "50 and over"]
    told = load(tmp_path, ROWS, groups=["age"], numeric=["age"], bins={"age": [30, 50]})
    assert told["train"][2]["age"].tolist() == ages.tolist()
    assert told.description.features == ("age", "age (missing)")  # the inputs are the numbers themselves


def test_a_split_is_drawn_of_each_class_and_is_the_same_at_every_call(tmp_path: Path) -> None:
    rows = {
        "x": list(range(100)),
        "sex": ["f", "m"] * 50,
        "result": ["rare"] * 10 + ["common"] * 90,
        "split": ["test"] * 100,
    }
    data = load(tmp_path, rows, split=None, numeric=["x"], test_share=0.3)
    assert np.bincount(data["test"][1]).tolist() == [27, 3]
    again = load(tmp_path, rows, split=None, numeric=["x"], test_share=0.3)
    other = load(tmp_path, rows, split=None, numeric=["x"], test_share=0.3, seed=1)
    assert (again["test"][0] == data["test"][0]).all()
    assert not (other["test"][0] == data["test"][0]).all()
    three = load(tmp_path, rows, split=None, numeric=["x"], test_share=0.3, heldout_share=0.2)
    assert np.bincount(three["validation"][1]).tolist() == [18, 2]
    scale = three.description.numeric["x"]  # of the rows that are left to train on
    unscaled = [inputs[:, 0] * scale.deviation + scale.mean for inputs, _, _ in three.values()]
    assert np.sort(np.concatenate(unscaled)) == pytest.approx(np.arange(100), abs=1e-3)
    assert unscaled[0].mean() == pytest.approx(scale.mean, abs=1e-3)
    first = data.description.numeric["x"]
    tested = data["test"][0][:, 0] * first.deviation + first.mean
    assert unscaled[1] == pytest.approx(tested, abs=1e-3)


def test_a_column_of_one_value_is_zero_and_noted(tmp_path: Path) -> None:
    data = load(tmp_path, ROWS | {"income": [0.1] * 6 + [0.1, 5.1]})
    at = data.description.features.index("income")
    assert not data["train"][0][:, at].any()
    assert data["test"][0][1, at] == pytest.approx(5)
    assert data.description.notes == ("income has one value in all training rows.",)


# --- problems ---


def problems(folder: Path, rows: dict[str, list[Any]], form: str = "csv", **told: Any) -> list[str]:
    with pytest.raises(InputProblems) as error:
        load(folder, rows, form, **told)
    return error.value.problems


@pytest.mark.parametrize(
    ("changes", "told", "message"),
    [
        ({}, {"label": "outcome"}, "has no column 'outcome'"),
        ({}, {"groups": ["race"]}, "has no column 'race'"),
        ({}, {"groups": []}, "groups is missing"),
        ({}, {"split": "part"}, "has no column 'part'"),
        ({}, {"numeric": ["agee"]}, "has no column 'agee' (did you mean 'age'?)"),
        ({}, {"numeric": ["age"], "categorical": ["age"]}, "column 'age' is listed twice"),
        ({}, {"numeric": ["age", "result"]}, "column 'result' is the label, and cannot be an input"),
        ({}, {"numeric": ["age"], "categorical": ["split"]}, "column 'split' is the split, and cannot"),
        ({}, {"numeric": [], "categorical": []}, "no inputs are listed"),
        ({}, {"ignore": ["jobs"]}, "has no column 'jobs' (did you mean 'job'?)"),
        ({}, {"numeric": ["age"], "ignore": ["age"]}, "'age' is listed as an input, and to be ignored"),
        ({}, {"ignore": ["age", "income", "job", "member"]}, "has no column left for inputs"),
        ({}, {"classes": ["yes", "maybe"]}, "there are labels 'no', which classes does not name"),
        ({}, {"numeric": ["job"]}, "7 of 8 values are no numbers, such as 'clerk', 'smith', 'baker'"),
        ({"age": [1, 2, 3, 4, 5, float("inf"), 7, 8]}, {}, "1 infinite value, the first in row 6"),
        ({"result": ["yes"] * 8}, {}, "one class only"),
        ({"result": ["yes", None] * 4}, {}, "4 of 8 samples have no label: 'row 2'"),
        ({"split": ["train"] * 8}, {}, "there is no sample in split 'test'"),
        ({"split": ["learn"] * 4 + ["test"] * 4}, {}, "split holds 'learn'"),
        ({}, {"test_share": 1.5, "split": None, "numeric": ["age"]}, "test_share is 1.5"),
        ({}, {"heldout_share": 0.8, "split": None, "numeric": ["age"]}, "no sample is left to train on"),
        ({"split": ["train"] * 4 + ["test", "dev"] * 2}, {"heldout_share": 0.5}, "has 2 held-out samples"),
        ({"age": [None] * 6 + [1, 2]}, {}, "column 'age' has no value in any training row"),
        (
            {"age": [1e-300, 2e-300, 3e-300] * 2 + [1e300, 0]},
            {},
            "row 7: age is so far from the training rows",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: Any, told: Any, message: str) -> None:
    found = problems(tmp_path, ROWS | changes, **told)
    assert any(message in problem for problem in found), found


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    rows = ROWS | {"result": ["yes"] * 8, "age": [1.0, 2, 3, 4, 5, 6, 7, float("inf")]}
    found = problems(tmp_path, rows, numeric=["age", "job", "height"])
    assert len(found) == 4, found


def test_too_many_categories_are_refused(tmp_path: Path) -> None:
    many = MOST_CATEGORIES + 1
    rows = {
        "street": [f"{i} High Street" for i in range(many)] * 2,
        "sex": ["f", "m"] * many,
        "result": (["yes", "no"] * many)[::-1],
        "split": ["train"] * many + ["test"] * many,
    }
    (found,) = problems(tmp_path, rows)
    assert "column 'street'" in found
    assert "holds 501 categories, such as '0 High Street'" in found
    assert "at most 500 can be inputs" in found
    assert "ignore=['street'] (--ignore 'street')" in found


@pytest.mark.parametrize("true", ["true", "True", "TRUE"])
def test_true_and_false_are_numbers_however_they_are_spelled(tmp_path: Path, true: str) -> None:
    plain = load(tmp_path, ROWS, "parquet", numeric=["member"])
    texts = [None if i == 1 else true if member else "False" for i, member in enumerate(ROWS["member"])]
    assert load(tmp_path, ROWS | {"member": texts}).description.features[-2:] == (
        "member",
        "member (missing)",
    )
    texts[1] = "False"
    for told in ({}, {"numeric": ["member"]}):
        data = load(tmp_path, ROWS | {"member": texts}, **told)
        assert (data["train"][0][:, -1] == plain["train"][0][:, -1]).all()
    listed = load(tmp_path, ROWS | {"member": texts}, categorical=["member"])
    assert len(listed.description.features) == 2


def large(**columns: list[Any]) -> dict[str, list[Any]]:
    """200 rows of a table that is all right, and further columns."""
    return {
        "sex": ["f", "m"] * 100,
        "result": ["yes", "no", "no", "yes"] * 50,
        "x": list(range(0, 400, 2)),
    } | columns


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            [f"p{i}" for i in range(200)],
            "holds 200 different values on 200 samples, such as 'p0', 'p1', 'p2'",
        ),
        (
            [f"2020-{1 + i % 12}-{1 + i // 12}" for i in range(200)],
            "is it an identifier, or a date? Leave it",
        ),
        (
            ["?", *map(str, range(199))],
            "holds numbers, but for 1 value of 200, such as '?': leave such values",
        ),
        ([f"{i % 30},{i % 7}" for i in range(200)], "holds numbers with commas, such as '0,0', '1,1', '2,2'"),
    ],
    ids=["identifier", "date", "one ?", "decimal commas"],
)
def test_texts_that_are_no_categories_are_refused(tmp_path: Path, values: list[str], said: str) -> None:
    (found,) = problems(tmp_path, large(odd=values))
    assert "column 'odd' of " in found
    assert said in found
    assert load(tmp_path, large(odd=values), ignore=["odd"]).description.features == ("x",)
    assert len(load(tmp_path, large(odd=values), categorical=["odd"]).description.features) > 20


def test_texts_of_few_values_stay_categories(tmp_path: Path) -> None:
    children = (["0", "1", "2", "3+"] * 50)[:200]
    letters = [f"{chr(97 + i % 26)}{i % 2}" for i in range(200)]
    data = load(tmp_path, large(children=children, letters=letters))
    assert len(data.description.features) == 1 + 4 + 26


def test_a_column_without_a_name_is_noted(tmp_path: Path) -> None:
    data = load(tmp_path, large(**{"": list(range(200))}))
    assert data.description.notes == (
        "A column without a name is an input; if it counts the rows, take it out of the table.",
    )
    assert load(tmp_path, large(**{"": list(range(200))}), ignore=[""]).description.notes == ()


def test_numbers_that_count_the_rows_are_noted(tmp_path: Path) -> None:
    numbers = [1000 + (i * 77) % 200 for i in range(200)]
    (note,) = load(tmp_path, large(id=numbers)).description.notes
    assert note.startswith("id holds the whole numbers from 1,000 to 1,199, each once, as an input")
    assert "ignore=['id'] (--ignore 'id')" in note
    assert load(tmp_path, large(id=[*numbers[:-1], 5])).description.notes == ()
    assert load(tmp_path, large(id=[number + 0.5 for number in numbers])).description.notes == ()


def test_many_categories_take_the_room_of_the_inputs_few_times(tmp_path: Path) -> None:
    """Once as blocks, once joined, once in splits; in double precision it would be twice that."""
    count, rng = 4000, np.random.default_rng(0)
    rows: dict[str, list[Any]] = {f"c{i}": rng.integers(0, 250, count).astype(str).tolist() for i in range(4)}
    rows |= {"n": rng.random(count).tolist(), "g": (np.arange(count) % 3).tolist()}
    path = written(tmp_path, rows | {"label": (np.arange(count) % 2).tolist()}, "parquet")
    tracemalloc.start()
    told = [f"c{i}" for i in range(4)]
    loaded = tabular.load(path, label="label", groups="g", numeric=["n"], categorical=told)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = sum(inputs.nbytes for inputs, _, _ in loaded.values())
    assert size == 4 * count * len(loaded.description.features)
    assert peak < 2.5 * size


def test_a_group_with_a_value_of_its_own_for_every_row_is_refused(tmp_path: Path) -> None:
    rows = {"x": list(range(200)), "name": [f"p{i}" for i in range(200)], "result": [0, 1] * 100}
    (found,) = problems(tmp_path, rows, groups=["name"])
    assert "group column 'name' holds 200 different values" in found


def test_columns_that_are_neither_numbers_nor_texts_are_refused(tmp_path: Path) -> None:
    rows = ROWS | {"age": [[1, 2]] * 8, "sex": [["f"]] * 8}
    path = tmp_path / "people.parquet"
    dates = pl.Series("born", [f"2001-01-0{i + 1}" for i in range(8)]).str.to_date()
    pl.DataFrame(rows).with_columns(dates).write_parquet(path)
    with pytest.raises(InputProblems) as error:
        tabular.load(path, label="result", groups="sex")
    text = "\n".join(error.value.problems)
    for name in ("'age'", "'sex'", "'born'"):
        assert f"column {name}" in text


def test_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("x,x,sex,result\n1,2,f,yes\n3,4,m,no\n5,6,f,no\n1,4,m,yes\n")
    with pytest.raises(InputProblems, match="two columns named 'x'"):
        tabular.load(path, label="result", groups="sex")


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x01\x02", b"PK\x03\x04 no zip", b"x;y\n\xff\xfe;1\n"], ids=str
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(content)
    with pytest.raises(InputProblems):
        tabular.load(path, label="result", groups="sex")


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputProblems, match=r"nothing\.csv"):
        tabular.load(tmp_path / "nothing.csv", label="result", groups="sex")


# --- invariants ---

cells = st.one_of(st.none(), st.floats(-1e6, 1e6).map(lambda x: round(x, 3)))
words = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d=e", "(missing)", "true"]))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(cells, words, st.booleans()), min_size=6, max_size=40),
    st.sampled_from(["csv", "parquet"]),
)
def test_training_inputs_are_standardised_and_one_hot(tmp_path: Path, rows: Any, form: str) -> None:
    rows = [(1.0, "a", True), (2.0, "b", True), *rows, (3.0, "z", False)]
    table = {
        "x": [x for x, _, _ in rows],
        "w": [w for _, w, _ in rows],
        "split": ["train" if t else "test" for _, _, t in rows],
        "sex": ["f", "m"] * (len(rows) // 2) + ["f"] * (len(rows) % 2),
        "result": ["yes", "no"] * (len(rows) // 2) + ["no"] * (len(rows) % 2),
    }
    data = load(tmp_path, table, form)
    about = data.description
    for name in ("train", "test"):
        inputs = data[name][0]
        assert inputs.shape == (len(data[name][1]), len(about.features))
        assert np.isfinite(inputs).all()
    train = data["train"][0].astype(float)
    numbers = np.array([np.nan if x is None else x for x, _, t in rows if t])
    known, values = ~np.isnan(numbers), train[:, 0]
    assert values[known].mean() == pytest.approx(0, abs=1e-4)
    if about.numeric["x"].deviation:
        assert values[known].std() == pytest.approx(1, abs=1e-4)
    assert (values[~known] == 0).all()
    one_hot = train[:, [i for i, f in enumerate(about.features) if f.startswith("w=")]]
    assert (one_hot.sum(1) == 1).all()  # every training row has a category, if only the missing one
    for row, (_, word, _) in zip(one_hot, [r for r in rows if r[2]], strict=True):
        assert about.categories["w"][int(row.argmax())] == word
    assert not data["test"][0][-1, -one_hot.shape[1] :].any()  # "z" is not in the training rows


# --- the same pipeline serves tables ---


def test_a_table_is_pruned_and_audited(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    age, job = rng.integers(18, 90, 400), rng.choice(["clerk", "smith", "baker"], 400)
    table = {
        "age": age.tolist(),
        "job": job.tolist(),
        "sex": rng.choice(["f", "m"], 400).tolist(),
        "result": np.where((age > 50) ^ (job == "smith"), "yes", "no").tolist(),
    }
    data = load(tmp_path, table)
    torch.manual_seed(0)
    model = mlp(len(data.description.features), (16, 16), num_classes=len(data.classes))
    inputs, labels = (torch.as_tensor(part) for part in data["train"][:2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    result = evenprune.prune(
        model, **data, groups="sex", sparsity=0.5, method=methods.ceag(tolerance=0.05, k=10),
        recipe=Recipe(epochs=3, pruning_epochs=1, batch_size=32), hooks=[],
    )  # fmt: skip
    assert {group.group for group in result.audit.groups} == {"f", "m"}
    assert result.audit.overall.dense > 0.8

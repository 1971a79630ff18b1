"""A class bias from a held-out split: known truths by simulation, invariants, and its way into a model."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evenprune import InputProblems, Split, class_bias
from evenprune.class_bias import WithBias, cross_check, fit, fold_, logits_of, units_of
from evenprune.predict import predict


def simulated(samples, classes, *, seed, shift=0.0, signal=3.2, agreement=0.85):
    """Logits of a pruned model, labels, and where a dense model is right; `shift` is added to the logits."""
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    rows = np.arange(samples)
    common, own = random.normal(size=(2, samples, classes))
    dense, pruned = common.copy(), agreement * common + np.sqrt(1 - agreement**2) * own
    dense[rows, labels] += signal
    pruned[rows, labels] += 0.92 * signal
    pruned += shift
    as_tensor = torch.as_tensor
    return as_tensor(pruned).float(), as_tensor(labels), as_tensor(dense.argmax(1) == labels)


def excess_gaps(predicted, labels, groups, dense_correct):
    """ψ_g written out."""
    right = (predicted == labels).double()
    dense = dense_correct.double()
    overall = dense.mean() - right.mean()
    ids = range(int(groups.max()) + 1)
    return torch.stack([dense[groups == g].mean() - right[groups == g].mean() - overall for g in ids])


def test_a_shifted_class_is_repaired_on_unseen_data():
    shift = np.zeros(10)
    shift[3] = -1.0
    logits, labels, dense = simulated(10_000, 10, seed=0, shift=shift)
    found = fit(logits, labels, labels, dense, tolerance=0.01)
    assert found.bias[3] - found.bias.median() == pytest.approx(1.0, abs=0.25)
    others = found.bias[torch.arange(10) != 3]
    assert float(others.max() - others.min()) < 0.25
    unseen, truth, dense_unseen = simulated(50_000, 10, seed=1, shift=shift)
    before = excess_gaps(unseen.argmax(1), truth, truth, dense_unseen)
    after = excess_gaps(found.predictions(unseen), truth, truth, dense_unseen)
    assert before.max() > 0.15
    assert after.max() < 0.025
    accuracies = [float((p == truth).double().mean()) for p in (unseen.argmax(1), found.predictions(unseen))]
    assert accuracies[1] > accuracies[0]


def test_the_reported_outcomes_are_those_of_the_biased_logits():
    logits, labels, dense = simulated(2000, 5, seed=2, shift=np.array([0, 0, -0.8, 0, 0.4]))
    found = fit(logits, labels, labels, dense, tolerance=0.01, regularise=0.0)
    for outcome, predicted in (
        (found.before, logits.argmax(1)),
        (found.after, found.predictions(logits)),
    ):
        excess = excess_gaps(predicted, labels, labels, dense)
        assert outcome.max_excess_gap == pytest.approx(float(excess.max()))
        assert outcome.pairwise_disparity == pytest.approx(float(excess.max() - excess.min()))
        assert outcome.accuracy == pytest.approx(float((predicted == labels).double().mean()))
    assert found.after.max_excess_gap <= 0.01 + 1e-9
    assert found.excess.tolist() == pytest.approx(
        excess_gaps(logits.argmax(1), labels, labels, dense).tolist()
    )
    assert found.believed.tolist() == pytest.approx(found.excess.tolist())  # all of it, with regularise=0
    assert found.moves > 0


def test_noise_is_left_alone_and_the_raw_fit_is_not():
    """No class was harmed: 100 samples a class show large gaps, which the raw fit takes for real."""
    worst = {"none": [], "raw": [], "default": []}
    for seed in range(4):
        logits, labels, dense = simulated(2000, 20, seed=seed)
        unseen, truth, dense_unseen = simulated(40_000, 20, seed=100 + seed)
        raw = fit(logits, labels, labels, dense, tolerance=0.01, regularise=0.0)
        default = fit(logits, labels, labels, dense, tolerance=0.01)
        assert raw.after.max_excess_gap < 0.03 < raw.before.max_excess_gap
        for name, predicted in (
            ("none", unseen.argmax(1)),
            ("raw", raw.predictions(unseen)),
            ("default", default.predictions(unseen)),
        ):
            worst[name].append(float(excess_gaps(predicted, truth, truth, dense_unseen).max()))
    assert np.mean(worst["raw"]) > np.mean(worst["none"]) + 0.02
    assert np.mean(worst["default"]) < np.mean(worst["none"]) + 0.005


def checked(found_on, **options):
    logits, labels, dense = found_on
    return cross_check(logits, labels, labels, dense, tolerance=0.01, **options)


def test_the_cross_check_tells_noise_from_disparity():
    """Where no class was harmed it shows that the raw fit does harm; where one was, that it helps."""
    harm = []
    for seed in range(3):
        noise = simulated(4000, 20, seed=seed)
        raw = checked(noise, regularise=0.0)
        harm.append(raw.after.max_excess_gap - raw.before.max_excess_gap)
        fitted = fit(noise[0], noise[1], noise[1], noise[2], tolerance=0.01, regularise=0.0)
        assert fitted.after.max_excess_gap < fitted.before.max_excess_gap - 0.01  # what the fit itself says
    assert np.mean(harm) > 0.005
    shift = np.zeros(20)
    shift[3] = -1.0
    real = checked(simulated(4000, 20, seed=7, shift=shift))
    assert real.after.max_excess_gap < real.before.max_excess_gap - 0.1


def test_the_cross_check_judges_each_fold_by_a_fit_without_it():
    logits, labels, dense = simulated(120, 3, seed=3, shift=np.array([-1.0, 0, 0]))
    found = cross_check(logits, labels, labels, dense, tolerance=0.0, regularise=0.0, folds=2)
    first = torch.arange(120) // 3 % 2 == 0  # labels are 0 1 2 0 1 2 …
    worst = []
    for out in (first, ~first):
        alone = fit(logits[~out], labels[~out], labels[~out], dense[~out], tolerance=0.0, regularise=0.0)
        excess = excess_gaps(alone.predictions(logits[out]), labels[out], labels[out], dense[out])
        worst.append(float(excess.max()))
    assert found.after.max_excess_gap == pytest.approx(np.mean(worst))


def objectives(biases, logits, labels, dense):
    """F = max_g ψ_g + Δ with ε = 0 of each bias, where every class is a group."""
    right = ((logits + biases.unsqueeze(1)).argmax(2) == labels).double()  # [biases, samples]
    lost = dense.double() - right
    classes = labels.unique()
    gaps = torch.stack([lost[:, labels == one].mean(1) for one in classes], 1)  # [biases, classes]
    overall = lost.mean(1)
    return (gaps - overall.unsqueeze(1)).amax(1).clamp_min(0) + overall


def objective(bias, *samples):
    return float(objectives(bias.unsqueeze(0), *samples)[0])


def test_it_is_as_good_as_a_fine_grid():
    grid = torch.linspace(-3, 3, 41)
    regrets = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        shift = random.normal(size=3) * 0.7
        logits, labels, dense = simulated(120, 3, seed=seed, shift=shift, signal=1.2, agreement=0.7)
        found = fit(logits, labels, labels, dense, tolerance=0.0, regularise=0.0)
        biases = torch.cartesian_prod(torch.zeros(1), grid, grid)
        best = float(objectives(biases, logits, labels, dense).min())
        regrets.append(objective(found.bias, logits, labels, dense) - best)
    assert max(regrets) <= 0.03
    assert np.mean(regrets) <= 0.003


def test_two_classes_are_solved_exactly():
    logits, labels, dense = simulated(200, 2, seed=5, shift=np.array([0.9, 0.0]), signal=1.0)
    found = fit(logits, labels, labels, dense, tolerance=0.0, regularise=0.0)
    edges = (logits[:, 0] - logits[:, 1]).sort().values
    middles = (edges[1:] + edges[:-1]) / 2
    best = min(objective(torch.tensor([0.0, float(m)]), logits, labels, dense) for m in middles)
    assert objective(found.bias, logits, labels, dense) <= best + 1e-9


cases = st.fixed_dictionaries(
    {
        "samples": st.integers(4, 60),
        "classes": st.integers(2, 5),
        "groups": st.integers(1, 4),
        "seed": st.integers(0, 10_000),
        "coarse": st.booleans(),  # few different logits: many ties
        "tolerance": st.sampled_from([0.0, 0.02, 0.2]),
        "regularise": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


def drawn(case):
    random = np.random.default_rng(case["seed"])
    logits = random.normal(size=(case["samples"], case["classes"])) * 2
    logits = np.round(logits) if case["coarse"] else logits
    labels = random.integers(0, case["classes"], case["samples"])
    groups = random.integers(-1, case["groups"], case["samples"])
    groups[0] = 0
    dense = random.random(case["samples"]) < 0.7
    arrays = (torch.as_tensor(logits).float(), *map(torch.as_tensor, (labels, groups, dense)))
    return arrays, {name: case[name] for name in ("tolerance", "regularise")}


@given(cases)
@settings(max_examples=80)
def test_invariants(case):
    arrays, options = drawn(case)
    logits, labels, groups, dense = arrays
    found = fit(*arrays, **options)
    # never worse, and nothing is touched where there is nothing to mend
    assert found.after.max_excess_gap <= found.before.max_excess_gap + 1e-12
    if found.before.max_excess_gap <= options["tolerance"]:
        assert not found.bias.any()
    # a constant added to the bias, or to the logits of a sample, changes nothing
    assert float(found.bias.mean()) == pytest.approx(0, abs=1e-6)
    if not case["coarse"]:
        assert torch.equal(class_bias.biased(logits, found.bias + 7).argmax(1), found.predictions(logits))
        moved = logits.double() + torch.arange(len(logits)).unsqueeze(1)
        assert fit(moved, labels, groups, dense, **options).bias.tolist() == pytest.approx(
            found.bias.tolist(), abs=1e-4
        )
    # the order of the samples does not matter
    order = torch.randperm(len(logits), generator=torch.Generator().manual_seed(case["seed"]))
    again = fit(*(array[order] for array in arrays), **options)
    assert torch.equal(again.bias, found.bias)
    assert again.after == found.after


def test_levelling_down_gains_nothing():
    """Group 1 can be brought level with group 0 only by spoiling it: it is left as it is."""
    # The samples of class 0 that the pruned model gets wrong lie beyond the reach of every bias but one that
    # gives all samples to class 0.
    logits = torch.tensor([[5.0, 0.0]] * 40 + [[-9.0, 0.0]] * 10 + [[0.0, 1.0]] * 50)
    labels = torch.tensor([0] * 50 + [1] * 50)
    dense = torch.ones(100, dtype=torch.bool)
    found = fit(logits, labels, labels, dense, tolerance=0.0, regularise=0.0)
    assert found.before.max_excess_gap == pytest.approx(0.1)
    assert not found.bias.any()


def test_superclasses_share_one_bias():
    units = torch.tensor([0, 0, 1, 1, 2, 2])
    shift = np.array([0, 0, -0.9, -0.9, 0, 0])
    logits, labels, dense = simulated(6000, 6, seed=6, shift=shift)
    groups = units[labels]
    assert torch.equal(units_of(labels, groups, classes=6), units)
    found = fit(logits, labels, groups, dense, tolerance=0.01, units=units)
    assert torch.equal(found.bias[0::2], found.bias[1::2])
    assert found.bias[2] - found.bias[0] == pytest.approx(0.9, abs=0.3)
    assert found.after.max_excess_gap < found.before.max_excess_gap / 3
    free = fit(logits, labels, groups, dense, tolerance=0.01)
    assert free.after.max_excess_gap < free.before.max_excess_gap / 3
    assert found.excess.shape == (3,)


def test_units_need_groups_that_are_unions_of_labels():
    labels, groups = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([0, 1, 0, 1, -1])
    with pytest.raises(InputProblems, match=r"classes \[0\] \(1 in all\) have samples in several groups"):
        units_of(labels, groups, classes=5)
    units = units_of(labels[1:], groups[1:], classes=5)
    assert units[1] == 0
    assert units[2] == units[0] == 1
    assert len(set(units.tolist())) == 4  # classes 3 and 4 stand alone


def test_a_class_without_samples_keeps_its_bias_and_an_absent_group_has_no_number():
    logits, labels, dense = simulated(3000, 4, seed=7, shift=np.array([0, -1.0, 0, 0]))
    kept = labels != 3
    logits, labels, dense = logits[kept], labels[kept], dense[kept]
    groups = torch.where(labels == 2, 5, labels)
    found = fit(logits, labels, groups, dense, tolerance=0.01, regularise=0.0)
    assert found.excess.isnan().tolist() == [False, False, True, True, True, False]
    # Were class 3 moved, it could be sunk for the good of all others.
    sunk = class_bias.biased(logits, torch.tensor([0.0, 0, 0, -20])).argmax(1)
    assert (sunk == labels).sum() > (logits.argmax(1) == labels).sum()
    assert (found.predictions(logits) == 3).any()


def test_samples_without_a_group_count_in_the_average_only():
    logits, labels, dense = simulated(900, 3, seed=8)
    groups = torch.where(torch.arange(900) % 2 == 0, labels, -1)
    found = fit(logits, labels, groups, dense, tolerance=0.0, regularise=0.0)
    overall = dense.double().mean() - (found.predictions(logits) == labels).double().mean()
    own = groups == 1
    gap = dense[own].double().mean() - (found.predictions(logits)[own] == 1).double().mean()
    assert float(gap - overall) <= found.after.max_excess_gap + 1e-9


@pytest.mark.slow
def test_a_hundred_classes_take_seconds():
    shift = np.random.default_rng(0).normal(size=100) * 0.25
    logits, labels, dense = simulated(10_000, 100, seed=9, shift=shift)
    start = time.process_time()
    found = fit(logits, labels, labels, dense, tolerance=0.02)
    assert time.process_time() - start < 30  # about 3 on one idle core
    assert found.after.max_excess_gap < found.before.max_excess_gap / 2


def test_every_problem_is_listed_at_once():
    logits = torch.zeros(4, 3)
    logits[2, 1] = float("nan")
    with pytest.raises(InputProblems) as caught:
        fit(logits, torch.tensor([0, 1, 2, 3]), torch.tensor([0, -2, 0, 0]), torch.ones(3), tolerance=0.1,
            units=torch.zeros(2))  # fmt: skip
    text = str(caught.value)
    for part in ("first at sample 2", "labels are 0 … 3", "as low as -2", "dense_correct have the shape [3]"):
        assert part in text
    assert "units have the shape [2]" in text
    with pytest.raises(InputProblems, match="give \\[samples, classes\\]"):
        fit(torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.zeros(4), tolerance=0.1)
    whole = (torch.zeros(2, 2), torch.tensor([0, 1]), torch.tensor([0, 1]), torch.ones(2))
    with pytest.raises(InputProblems) as caught:
        fit(*whole, tolerance=-1, regularise=2)
    assert len(caught.value.problems) == 2
    with pytest.raises(InputProblems, match="folds is 1"):
        cross_check(*whole, tolerance=0.1, folds=1)
    with pytest.raises(InputProblems, match="no sample has a group"):
        fit(whole[0], whole[1], torch.tensor([-1, -1]), whole[3], tolerance=0.1)
    with pytest.raises(InputProblems) as caught:
        fit(whole[0].numpy(), whole[1].tolist(), whole[2], whole[3], tolerance=0.1, units=[0, 1])  # type: ignore[arg-type]
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "logits are a ndarray", "labels are a list", "units are a list"
    ]  # fmt: skip


# --- into the model ---


def network(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4, bias=bias)
    )


@pytest.mark.parametrize("has_bias", [True, False])
def test_folding_is_the_same_as_adding(has_bias):
    model, inputs = network(has_bias), torch.randn(16, 6)
    bias = torch.tensor([0.5, -1.0, 0.25, 0.25])
    wrapped = WithBias(model, bias).eval()
    wanted, plain = wrapped(inputs), model(inputs)
    assert torch.allclose(wanted, plain + bias)
    model.train()
    assert fold_(model, bias, sample_input=inputs) == "4"
    assert model.training
    assert torch.allclose(model.eval()(inputs), wanted, atol=1e-6)
    assert isinstance(model[4].bias, nn.Parameter)
    assert model[4].bias.requires_grad


def test_a_model_with_a_bias_can_be_exported_and_saved():
    inputs = torch.randn(3, 6)
    model = WithBias(network(), torch.tensor([0.5, -1.0, 0.25, 0.25])).eval()
    exported = torch.export.export(model, (inputs,))
    assert torch.allclose(exported.module()(inputs), model(inputs))
    other = WithBias(network(), torch.zeros(4)).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(inputs), model(inputs))
    assert model.double()(inputs.double()).dtype == torch.float64


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 4)

    def forward(self, inputs):
        return self.last(inputs) * 2


class Twice(nn.Module):
    """The last layer is also an inner one: its bias is not the logits' alone."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, inputs):
        return self.layer(torch.relu(self.layer(inputs)))


@pytest.mark.parametrize(
    ("model", "classes", "message"),
    [
        (Scaled(), 4, "does not return the output of a linear layer"),
        (Twice(), 6, "the logits are off by"),
        (network(), 3, "The bias has 3 values, the model 4 classes"),
    ],
)
def test_a_model_that_cannot_take_it_is_left_as_it_was(model, classes, message):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        fold_(model, torch.arange(classes).float(), sample_input=torch.randn(5, 6))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_logits_come_in_order_and_the_mode_is_put_back():
    model, inputs = network(), torch.randn(11, 6)
    split = Split(inputs, torch.zeros(11, dtype=torch.long), torch.zeros(11, dtype=torch.long))
    found = logits_of(model, split, batch_size=4)
    assert model.training
    assert torch.allclose(found, model.eval()(inputs), atol=1e-6)
    assert not found.requires_grad


def test_logits_in_bfloat16_are_those_that_the_model_answers_by():
    model, inputs = network().eval(), torch.randn(400, 6)
    labels = torch.zeros(400, dtype=torch.long)
    split = Split(inputs, labels, labels)
    coarse = logits_of(model, split, precision="bfloat16")
    assert coarse.dtype == torch.float32
    assert not torch.equal(coarse, logits_of(model, split))
    assert torch.equal(coarse.argmax(1), predict(model, split, precision="bfloat16").predictions)

"""Gradient norm and largest Hessian eigenvalue per group: against explicit Hessians and known spectra."""

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import evenprune
from evenprune import InputProblems, Masks, Split, diagnostics
from evenprune.diagnostics import largest_eigenvalue, measure
from evenprune.verdict import Approximate

NAMES = ("a", "b", "c")


def network(seed=0, inputs=5, hidden=4, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, classes)
    )


def samples(count=40, seed=1, inputs=5, groups=3):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=random)
    own = torch.arange(count) % groups
    drawn = torch.randn(count, inputs, generator=random) * (1 + own.unsqueeze(1))
    return Split(drawn + labels.unsqueeze(1), labels, own)


def explicit(model, split, group, masks=None):
    """∇L_g and H_g written out, over the weights that are left."""
    model = model.double()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    own = split.groups == group

    def loss(weights):
        parts = torch.split(weights, [shape.numel() for shape in shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        logits = torch.func.functional_call(model, named, (split.inputs[own].double(),))
        return functional.cross_entropy(logits, split.labels[own])

    kept = torch.cat(
        [
            (masks[name] if masks is not None and "2." in name and "weight" in name else torch.ones(shape))
            .bool()
            .reshape(-1)
            for name, shape in shapes.items()
        ]
    )
    with warnings.catch_warnings():  # torch's own use of torch.jit
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.grad(loss)(flat)[kept], torch.func.hessian(loss)(flat)[kept][:, kept]


@pytest.mark.parametrize("batch_size", [512, 4])
def test_it_agrees_with_the_explicit_hessian(batch_size):
    model, split = network(), samples()
    found = measure(model, split, NAMES, batch_size=batch_size, iterations=2000, tolerance=1e-5, float64=True)
    for group in range(3):
        gradient, hessian = explicit(model, split, group)
        eigenvalues = torch.linalg.eigvalsh(hessian)
        assert found["gradient_norm"][group] == pytest.approx(float(gradient.norm()), rel=1e-10)
        assert found["largest_eigenvalue"][group] == pytest.approx(float(eigenvalues[-1]), rel=1e-6)
        assert found["converged"][group]
        assert found["residual"][group] <= 1e-5 * eigenvalues.abs().max() * (1 + 1e-6)
    assert found["samples"].tolist() == [14, 13, 13]


def test_masks_leave_the_pruned_weights_out():
    model, split = network(), samples()
    masks = Masks.of(model)
    masks.prune_(model, 0.5)
    found = measure(model, split, NAMES, masks=masks, iterations=2000, tolerance=1e-5, float64=True)
    whole = measure(model, split, NAMES, iterations=2000, tolerance=1e-5, float64=True)
    for group in range(3):
        gradient, hessian = explicit(model, split, group, masks)
        assert found["gradient_norm"][group] == pytest.approx(float(gradient.norm()), rel=1e-10)
        largest = float(torch.linalg.eigvalsh(hessian)[-1])
        assert found["largest_eigenvalue"][group] == pytest.approx(largest, rel=1e-6)
        assert found["gradient_norm"][group] < whole["gradient_norm"][group]
        assert (
            found["largest_eigenvalue"][group] <= whole["largest_eigenvalue"][group]
        )  # Cauchy's interlacing


def quadratic(eigenvalues, seed=0):
    """v ↦ Hv with this spectrum, and a start vector."""
    random = torch.Generator().manual_seed(seed)
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=random))[0]
    matrix = basis @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ basis.T
    return lambda v: matrix @ v, torch.randn(size, dtype=torch.float64, generator=random)


@pytest.mark.parametrize(
    ("eigenvalues", "largest"),
    [
        ([5.0, 2.0, 1.0, 0.0], 5.0),
        ([-9.0, 3.0, 1.0, 0.5], 3.0),  # the largest in magnitude is negative
        ([-4.0, 4.0, 1.0, 0.0], 4.0),  # a tie in magnitude: plain power iteration does not settle
        ([-4.0, 3.96, 1.0, 0.0], 3.96),
        ([-4.0, -3.0, -2.0, -0.5], -0.5),  # all negative
        ([-4.0, 0.0, 0.0, -1.0], 0.0),
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([2.0, 2.0, 2.0, 2.0], 2.0),
        ([1e-9, 1e-10, 0.0, -1e-10], 1e-9),
    ],
)
def test_the_largest_in_sign_of_a_known_spectrum(eigenvalues, largest):
    product, start = quadratic(eigenvalues)
    found = largest_eigenvalue(product, start, iterations=5000, tolerance=1e-6)
    scale = max(map(abs, eigenvalues))
    assert found.value == pytest.approx(largest, abs=1e-5 * scale)
    assert found.converged
    assert found.residual <= 1e-6 * scale * (1 + 1e-9)


@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=8),
    st.integers(0, 1000),
    st.integers(1, 60),
)
@settings(max_examples=60)
def test_it_never_exceeds_the_largest_and_the_residual_tells_how_near_one_is(eigenvalues, seed, iterations):
    product, start = quadratic(eigenvalues, seed)
    found = largest_eigenvalue(product, start, iterations=iterations, tolerance=1e-3)
    assert found.value <= max(eigenvalues) + 1e-9
    assert min(abs(found.value - value) for value in eigenvalues) <= found.residual + 1e-9
    assert 1 <= found.iterations <= 2 * iterations


def test_few_iterations_say_that_they_were_too_few():
    product, start = quadratic([1.0, 0.999, 0.5, 0.1])
    found = largest_eigenvalue(product, start, iterations=3, tolerance=1e-9)
    assert not found.converged
    assert found.iterations in (3, 6)
    assert found.residual > 0


def test_absent_groups_have_no_numbers_and_unknown_ones_no_part():
    model, split = network(), samples(30, groups=2)
    part = Split(split.inputs, split.labels, torch.where(torch.arange(30) < 6, -1, split.groups))
    found = measure(model, part, NAMES, iterations=5)
    assert found["samples"].tolist() == [12, 12, 0]
    assert math.isnan(found["gradient_norm"][2])
    assert math.isnan(found["largest_eigenvalue"][2])
    assert not found["converged"][2]
    rest = Split(split.inputs[6:], split.labels[6:], split.groups[6:])
    again = measure(model, rest, NAMES, iterations=5)
    assert found["gradient_norm"][:2].tolist() == pytest.approx(again["gradient_norm"][:2].tolist())


def test_the_model_is_left_as_it_was_and_numbers_repeat():
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    first = measure(model, samples(), NAMES, iterations=10)
    torch.manual_seed(6)
    with torch.no_grad():
        second = measure(model, samples(), NAMES, iterations=10)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_single_precision_is_near_double():
    model, split = network(), samples()
    single = measure(model, split, NAMES, iterations=500, tolerance=1e-4)
    double = measure(model, split, NAMES, iterations=500, tolerance=1e-4, float64=True)
    assert next(model.parameters()).dtype == torch.float32
    assert single["gradient_norm"].tolist() == pytest.approx(double["gradient_norm"].tolist(), rel=1e-4)
    assert single["largest_eigenvalue"].tolist() == pytest.approx(
        double["largest_eigenvalue"].tolist(), rel=1e-3
    )


def test_frozen_weights_are_left_out():
    model, split = network(), samples()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    frozen = measure(model, split, NAMES, iterations=200)
    whole = measure(network(), split, NAMES, iterations=200)
    assert bool((frozen["gradient_norm"] < whole["gradient_norm"]).all())


def test_the_columns_go_into_an_audit():
    model, split = network(), samples(120)
    measured = measure(model, split, NAMES, iterations=20)
    given_ = diagnostics.columns(measured, NAMES)
    names = [NAMES[group] for group in split.groups.tolist()]
    right = [True, False] * 60
    audit = evenprune.audit(
        dense_correct=right, pruned_correct=right, groups=names, tolerance=0.1, columns=given_
    )
    assert list(audit.columns) == ["gradient norm", "largest Hessian eigenvalue"]
    assert audit.columns["gradient norm"]["b"] == pytest.approx(float(measured["gradient_norm"][1]))


def test_problems_come_together():
    model, split = network(), samples()
    other = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(InputProblems) as caught:
        measure(model, split, ["a"], masks=Masks.of(other), batch_size=0, iterations=0)
    text = str(caught.value)
    assert "batch_size is 0" in text
    assert "iterations is 0" in text
    assert "group ids [1, 2] are outside" in text
    assert "has no trained parameters ['1.weight']" in text


def test_a_diverged_model_is_named():
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="gradient of group 0 is not finite"):
        measure(model, samples(), NAMES)


def test_eigenvalues_that_did_not_converge_are_marked():
    model, split, names = network(), samples(), ("a", "b", "c", "nobody")
    rough = diagnostics.measure(model, split, names, iterations=1)
    assert not rough["converged"].any()
    columns = diagnostics.columns(rough, names)
    marked = [isinstance(columns["largest Hessian eigenvalue"][name], Approximate) for name in names]
    assert marked == [True, True, True, False]  # of nobody there is no number
    assert not any(isinstance(value, Approximate) for value in columns["gradient norm"].values())
    exact = diagnostics.columns(diagnostics.measure(model, split, names, iterations=2000), names)
    assert not any(isinstance(value, Approximate) for value in exact["largest Hessian eigenvalue"].values())

"""The constraint step against its slow twins: deques, the Lagrangian longhand, Cooper's multipliers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evenprune import constraint, estimate, methods
from evenprune.constraint import Method, Plan
from evenprune.reference import DenseReference
from tests.twins.cooper_dual import trajectory
from tests.twins.lagrangian import Longhand, gradient
from tests.twins.published import Published
from tests.twins.ring import Rings, Table
from tests.twins.streams import VARIANTS, outcomes, training_set

ON = torch.tensor(True)


@pytest.mark.parametrize("name", VARIANTS)
def test_weights_and_multipliers_are_those_of_the_lagrangian_longhand(name: str) -> None:
    method = replace(VARIANTS[name], negative="keep")
    ids, reference = training_set(4, 60, seed=1)
    plan = Plan.of([method], reference, samples=60, dtype=torch.float64)
    state, twin = constraint.init(plan), Longhand(method, reference)
    generator = torch.Generator().manual_seed(2)
    for _ in range(60):
        losses, correct, groups, index = outcomes(ids, 7, generator)
        expected = gradient(twin, losses, correct, groups, index)
        batch = (losses[None], correct[None], groups[None])
        weights, state = constraint.step(plan, state, *batch, index=index[None], active=ON)
        torch.testing.assert_close(weights[0], expected, rtol=1e-9, atol=1e-12)
    psi = torch.tensor([twin.psi.get(g, 0.0) for g in range(4)], dtype=torch.float64)
    torch.testing.assert_close(state["psi"][0], psi, rtol=1e-9, atol=1e-12)
    moved = sum(abs(value) for value in twin.multiplier.values())
    assert constraint.multipliers(plan, state).abs().sum().item() == pytest.approx(moved, rel=1e-9)
    assert (moved > 0.05) == (method.rows != "none")


def test_equalized_loss_on_the_batch_is_the_gradient_of_the_absolute_value() -> None:
    """L + Σ λ_g |L_g - L|, differentiated by autograd as it stands."""
    ids, reference = training_set(4, 60, seed=3)
    plan = Plan.of([methods.el(dual_lr=0.1, negative="keep")], reference, samples=60, dtype=torch.float64)
    state, generator = constraint.init(plan), torch.Generator().manual_seed(4)
    for _ in range(20):
        losses, correct, groups, _ = outcomes(ids, 9, generator)
        weights, state = constraint.step(plan, state, losses[None], correct[None], groups[None], active=ON)
        leaf = losses.clone().requires_grad_()
        total = leaf.mean()
        for group in range(4):
            if (groups == group).any():
                total = (
                    total + state["multiplier"][0, group] * (leaf[groups == group].mean() - leaf.mean()).abs()
                )
        (expected,) = torch.autograd.grad(total, leaf)
        torch.testing.assert_close(weights[0], expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=40)
@given(data=st.data(), k=st.integers(1, 6), groups=st.integers(1, 5), loss=st.booleans())
def test_ring_is_a_deque_per_group(data: st.DataObject, k: int, groups: int, loss: bool) -> None:
    """Any stream: absent groups, groups that never fill, missing labels, over k of a group in one batch."""
    slots = k + data.draw(st.integers(0, 3))
    dtype = torch.float64 if loss else torch.int8
    ring = torch.zeros(1, groups + 2, slots, dtype=dtype)
    count = torch.zeros(1, groups + 2, dtype=torch.int64)
    total = torch.zeros(1, groups + 2, dtype=torch.float64)
    twin, size = Rings(groups, k), torch.tensor([[k]])
    for _ in range(data.draw(st.integers(1, 8))):
        batch = data.draw(st.integers(1, 12))
        ids = data.draw(st.lists(st.integers(-1, groups - 1), min_size=batch, max_size=batch))
        seed = data.draw(st.integers(0, 2**31))
        values = torch.rand(1, batch, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = values if loss else values.round()
        twin.push(values[0].tolist(), ids)
        grouped = estimate.group_batch(torch.tensor([ids]), groups)
        write = torch.tensor([[True]])
        estimate.push_ring((ring, count, total), grouped, values, k=size, write=write)
        read = estimate.read_ring(count, total, k=size, share=total[:, :-1])
        expected = twin.means()
        for group in range(-1, groups):
            assert bool(read.counted[0, group]) == (group in expected)
            if group in expected:
                assert read.value[0, group].item() == pytest.approx(expected[group], abs=1e-12)
    for group in range(groups):
        held = sorted(twin.deques[group]) + [0.0] * (slots - len(twin.deques[group]))
        assert sorted(ring[0, group].tolist()) == pytest.approx(sorted(held))
    assert not ring[0, -1].any()


@settings(max_examples=25)
@given(data=st.data(), loss=st.booleans())
def test_table_is_the_latest_outcome_of_every_sample(data: st.DataObject, loss: bool) -> None:
    samples, groups = 12, 3
    ids = torch.tensor([i % (groups + 1) - 1 for i in range(samples)])
    dtype = torch.float64 if loss else torch.int8
    table = torch.full((1, samples + 1), estimate.unseen(dtype), dtype=dtype)
    total = torch.zeros(1, groups + 1, dtype=torch.float64)
    seen = torch.zeros(1, groups + 1, dtype=torch.int64)
    sizes = torch.tensor([[3, 3, 3, 3]])
    twin = Table(dict.fromkeys(range(-1, groups), 3))
    for _ in range(data.draw(st.integers(1, 8))):
        drawn = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=10))
        index = torch.tensor([drawn])
        seed = data.draw(st.integers(0, 2**31))
        values = torch.rand(1, len(drawn), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        values = values if loss else values.round()
        twin.push(values[0].tolist(), ids[index[0]].tolist(), drawn)
        grouped = estimate.group_batch(ids[index], groups)
        write = torch.tensor([[True]])
        estimate.push_table((table, total, seen), grouped, values, index=index, write=write)
        read = estimate.read_table(total, seen, samples=sizes, share=total)
        expected = twin.means()
        for group in range(-1, groups):
            assert bool(read.counted[0, group]) == (group in expected)
            if group in expected:
                assert read.value[0, group].item() == pytest.approx(expected[group], abs=1e-12)


def test_table_after_one_epoch_is_a_full_evaluation() -> None:
    """A fixed model seen once in shuffled batches: ψ is the exact excess gap on the whole training set."""
    ids, reference = training_set(6, 200, seed=5)
    generator = torch.Generator().manual_seed(6)
    correct = torch.rand(200, generator=generator) < 0.7
    losses = torch.rand(200, generator=generator)
    fleet = [methods.ceag(tolerance=0.0, estimator="table"), methods.celg(tolerance=0.0, estimator="table")]
    plan = Plan.of(fleet, reference, samples=200)
    state = constraint.init(plan)
    for index in torch.randperm(200, generator=generator).split(32):
        batch = (part[index].expand(2, -1) for part in (losses, correct, ids))
        _, state = constraint.step(plan, state, *batch, index=index.expand(2, -1), active=ON)
    sparse = DenseReference.from_outcomes(correct=correct, losses=losses, groups=ids, names=reference.names)
    gap = (reference.accuracy - sparse.accuracy) - (reference.overall_accuracy - sparse.overall_accuracy)
    loss_gap = (sparse.loss - reference.loss) - (sparse.overall_loss - reference.overall_loss)
    torch.testing.assert_close(state["psi"], torch.stack([gap, loss_gap]).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        methods.ceag(tolerance=0.05, dual_lr=0.2, k=3),
        methods.equalized(dual_lr=0.2, k=3),
        methods.ceag(tolerance=0.05, dual_lr=0.2, k=3, dual="nupi", kp=3.0, ki=0.7, nu=0.9),
        methods.equalized(dual_lr=0.2, k=3, dual="nupi", kp=3.0, ki=0.7, nu=0.0),
        methods.two_sided(tolerance=0.05, dual_lr=0.2, k=3, dual="nupi", kp=1.0, nu=0.5),
    ],
    ids=["sgd", "sgd equality", "nupi", "nupi equality", "nupi two-sided"],
)
def test_multiplier_trajectory_is_cooper_s(method: Method) -> None:
    """Every batch fills all rings, so both see the same violations from the first step on."""
    groups, steps = 3, 80
    ids = torch.arange(groups).repeat(3)[None]
    reference = DenseReference.from_outcomes(
        correct=torch.ones(9), losses=torch.zeros(9), groups=ids[0], names=["a", "b", "c"]
    )
    plan = Plan.of([method], reference, samples=9, dtype=torch.float64)
    state, generator = constraint.init(plan), torch.Generator().manual_seed(7)
    violations, ours = [], []
    for _ in range(steps):
        correct = torch.rand(1, 9, generator=generator) < torch.tensor([0.9, 0.7, 0.5]).repeat(3)
        _, state = constraint.step(plan, state, torch.zeros(1, 9), correct, ids, active=ON)
        psi = state["psi"][0]
        sides = torch.cat([psi, -psi]) if method.kind == "two_sided" else psi
        violations.append(sides - method.tolerance)
        ours.append(constraint.multipliers(plan, state)[0])
    expected = trajectory(method, torch.stack(violations))
    torch.testing.assert_close(torch.stack(ours), expected, rtol=1e-9, atol=1e-12)
    assert (expected == 0).any() or method.kind == "equal"  # the projection was at work


def test_published_form_is_ceag_with_macro_overall_and_unclipped_weights() -> None:
    method = methods.ceag(tolerance=0.02, dual_lr=0.3, k=5, overall="macro", negative="keep")
    ids, reference = training_set(4, 60, seed=12)
    ids = ids.clamp_min(0)  # the published code knows no missing labels
    plan = Plan.of([method], reference, samples=60)
    state, generator = constraint.init(plan), torch.Generator().manual_seed(13)
    dense = reference.accuracy.tolist()
    twin = Published(dense, reference.overall_accuracy, tolerance=0.02, dual_lr=0.3, k=5)
    for _ in range(40):
        losses, correct, groups, _ = outcomes(ids, 9, generator)
        leaf = losses.float().requires_grad_()
        (expected,) = torch.autograd.grad(twin.loss(leaf, correct, groups), leaf)
        weights, state = constraint.step(plan, state, losses[None], correct[None], groups[None], active=ON)
        torch.testing.assert_close(weights[0], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state["multiplier"][0], twin.multipliers, rtol=1e-4, atol=1e-5)
    assert twin.multipliers.max() > 0.1

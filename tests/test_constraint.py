"""The constraint step: filling rings, missing labels, mixed fleets, no host sync, an exact optimum."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from evenprune import constraint, methods
from evenprune.constraint import Method, Plan, State
from evenprune.reference import DenseReference
from tests.twins.streams import VARIANTS, outcomes, training_set

ON, OFF = torch.tensor(True), torch.tensor(False)


def perfect(samples: list[int], *, missing: int = 0) -> DenseReference:
    """A dense model that is always right, with a loss of zero."""
    groups = torch.cat([torch.full((n,), g) for g, n in enumerate(samples)] + [torch.full((missing,), -1)])
    return DenseReference.from_outcomes(
        correct=torch.ones(len(groups)),
        losses=torch.zeros(len(groups)),
        groups=groups,
        names=list("abcdef")[: len(samples)],
    )


def feed(
    plan: Plan, state: State, correct: list[int], groups: list[int], active: Tensor = ON
) -> tuple[Tensor, State]:
    """One batch, the same for every run."""
    right = torch.tensor(correct, dtype=torch.bool).expand(plan.runs, -1)
    return constraint.step(
        plan,
        state,
        torch.zeros(right.shape),
        right,
        torch.tensor(groups).expand(plan.runs, -1),
        active=active,
    )


def test_a_group_counts_once_its_ring_is_full_and_then_moves_at_every_step() -> None:
    plan = Plan.of([methods.ceag(tolerance=0.0, dual_lr=1.0, k=2)], perfect([4, 4]), samples=8)
    weights, state = feed(plan, constraint.init(plan), [1, 1, 0], [0, 0, 1])
    assert state["counted"].tolist() == [[True, False]]
    assert state["psi"].tolist() == [[0, 0]]  # group 1 has one outcome of two
    assert weights.tolist() == [[pytest.approx(1 / 3)] * 3]
    _, state = feed(plan, state, [0], [1])
    assert state["psi"].tolist() == [[-0.5, 0.5]]
    assert constraint.multipliers(plan, state).tolist() == [[0, 0.5]]
    weights, state = feed(plan, state, [1, 1], [0, 0])  # group 1 is not in this batch
    assert constraint.multipliers(plan, state).tolist() == [[0, 1.0]]
    assert weights.tolist() == [[0.5, 0.5]]  # its row is masked out of the primal
    weights, state = feed(plan, state, [0, 1], [1, 0])  # λ = 1.5: multipliers move first
    assert weights.sum().item() == pytest.approx(1)
    assert state["negative_weights"].tolist() == [1]


def test_micro_weighs_by_frequency_over_full_groups_and_macro_as_published() -> None:
    """Group a: 80 % of the samples and never wrong; b: 20 %, always wrong; c has not filled its ring."""
    fleet = [methods.ceag(tolerance=0.0, k=1), methods.ceag(tolerance=0.0, k=1, overall="macro")]
    correct = torch.cat([torch.ones(80), torch.zeros(20)])
    groups = torch.cat([torch.zeros(64), torch.ones(16), torch.full((20,), 2)]).long()
    reference = DenseReference.from_outcomes(
        correct=correct, losses=correct, groups=groups, names=list("abc")
    )
    plan = Plan.of(fleet, reference, samples=100)
    _, state = feed(plan, constraint.init(plan), [1, 0], [0, 1])
    # micro: dense over a and b is 1.0, sparse 0.8. macro: dense over everything is 0.8, sparse (1 + 0) / 2.
    torch.testing.assert_close(state["psi"], torch.tensor([[-0.2, 0.8, 0], [-0.3, 0.7, 0]]))


def test_missing_labels_belong_to_the_overall_accuracy_and_to_no_constraint() -> None:
    plan = Plan.of([methods.ceag(tolerance=0.0, dual_lr=1.0, k=1)], perfect([5], missing=5), samples=10)
    _, state = feed(plan, constraint.init(plan), [1], [0])
    assert state["psi"].tolist() == [[0]]  # overall is known from group 0 alone so far
    weights, state = feed(plan, state, [0, 1], [0, -1])
    assert state["psi"].tolist() == [[0.5]]  # gap 1 for the group, overall gap 0.5 · 1 + 0.5 · 0
    assert weights.tolist() == [[0.75, 0.25]]  # (1 - λ)/2 + λ and (1 - λ)/2, λ = 0.5


def test_inactive_runs_weigh_evenly_and_remember_nothing() -> None:
    fleet = [
        methods.ceag(tolerance=0.0, dual_lr=1.0, k=1),
        methods.ceag(tolerance=0.0, dual_lr=1.0, estimator="table"),
    ]
    plan = Plan.of(fleet * 2, perfect([2, 2]), samples=4)
    batch = (
        torch.rand(4, 4),
        torch.tensor([1, 1, 0, 0]).bool().expand(4, -1),
        torch.tensor([0, 0, 1, 1]).expand(4, -1),
    )
    index = torch.arange(4).expand(4, -1)
    start = constraint.init(plan)
    weights, state = constraint.step(plan, start, *batch, index=index, active=OFF)
    assert (weights == 0.25).all()
    for name, value in constraint.init(plan).items():
        assert torch.equal(state[name].nan_to_num(), value.nan_to_num()), name
    some = torch.tensor([True, True, False, False])
    weights, state = constraint.step(plan, start, *batch, index=index, active=some)
    assert (weights[2:] == 0.25).all()
    assert (weights[:2] != 0.25).all()
    assert constraint.multipliers(plan, state)[:, 1].tolist() == [0.5, 0.5, 0, 0]
    assert state["steps"].tolist() == [1, 1, 0, 0]
    assert all(torch.equal(state[name][2:], constraint.init(plan)[name][2:]) for name in state)


def stream(seed: int, steps: int, batch: int) -> tuple[DenseReference, list[tuple[Tensor, ...]]]:
    ids, reference = training_set(4, 60, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return reference, [outcomes(ids, batch, generator) for _ in range(steps)]


def run(plan: Plan, batches: list[tuple[Tensor, ...]]) -> tuple[Tensor, State]:
    state, all_weights = constraint.init(plan), []
    for batch in batches:
        losses, correct, groups, index = (part.expand(plan.runs, -1) for part in batch)
        weights, state = constraint.step(plan, state, losses, correct, groups, index=index, active=ON)
        all_weights.append(weights)
    return torch.stack(all_weights, 1), state


def test_a_mixed_fleet_is_its_runs_one_by_one() -> None:
    """All methods, estimators, ring sizes and dual steps in one fleet."""
    fleet = [
        *VARIANTS.values(),
        methods.ceag(tolerance=0.1, dual_lr=1.0, k=9),
        methods.celg(tolerance=0.0, k=2),
    ]
    reference, batches = stream(seed=8, steps=40, batch=7)
    together, state = run(Plan.of(fleet, reference, samples=60), batches)
    for position, method in enumerate(fleet):
        alone, own = run(Plan.of([method], reference, samples=60), batches)
        torch.testing.assert_close(together[position], alone[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(state["psi"][position], own["psi"][0], rtol=1e-6, atol=1e-6)
        gaps = constraint.largest_gap(state)[position], constraint.largest_gap(own)[0]
        torch.testing.assert_close(*gaps, rtol=1e-5, atol=1e-6)
        assert state["negative_weights"][position] == own["negative_weights"][0]


def test_float32_and_float64_agree_for_every_method() -> None:
    """Many groups with equal accuracies: a gap of zero must not get its sign from rounding."""
    groups = torch.arange(60) % 4
    ones = torch.ones(60)
    reference = DenseReference.from_outcomes(correct=ones, losses=ones, groups=groups, names=list("abcd"))
    generator = torch.Generator().manual_seed(14)
    batches = [outcomes(groups, 16, generator) for _ in range(40)]
    fleet = list(VARIANTS.values())
    single, _ = run(Plan.of(fleet, reference, samples=60), batches)
    double, state = run(Plan.of(fleet, reference, samples=60, dtype=torch.float64), batches)
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)
    assert ((state["psi"].abs() < 1e-9) & state["counted"]).any()


def test_step_leaves_its_state_alone_and_step_in_place_does_the_same() -> None:
    reference, batches = stream(seed=9, steps=10, batch=7)
    plan = Plan.of(
        [methods.ceag(tolerance=0.0, k=3), methods.celg(tolerance=0.0, estimator="table")],
        reference,
        samples=60,
    )
    pure, inplace = constraint.init(plan), constraint.init(plan)
    tensors = dict(inplace)
    for batch in batches:
        losses, correct, groups, index = (part.expand(2, -1) for part in batch)
        before = {name: value.clone() for name, value in pure.items()}
        weights, new = constraint.step(plan, pure, losses, correct, groups, index=index, active=ON)
        assert all(torch.equal(before[name].nan_to_num(), pure[name].nan_to_num()) for name in pure)
        assert torch.equal(
            weights, constraint.step_(plan, inplace, losses, correct, groups, index=index, active=ON)
        )
        assert all(torch.equal(new[name].nan_to_num(), inplace[name].nan_to_num()) for name in new)
        pure = new
    assert all(inplace[name] is tensors[name] for name in tensors)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), dual_lr=st.floats(0.01, 20), batch=st.integers(1, 20))
def test_weights_sum_to_one_and_clipping_keeps_the_sum(seed: int, dual_lr: float, batch: int) -> None:
    options: dict[str, Any] = {"tolerance": 0.0, "dual_lr": dual_lr, "k": 2}
    fleet = [
        function(**options, negative=negative)
        for negative in ("keep", "clip")
        for function in (methods.ceag, methods.two_sided, methods.pairwise, methods.all_pairs)
    ]
    reference, batches = stream(seed=seed, steps=6, batch=batch)
    weights, state = run(Plan.of(fleet, reference, samples=60), batches)
    keep, clip = weights[:4].double(), weights[4:].double()
    scale = keep.abs().sum(2).amax() + 1
    assert ((keep.sum(2) - 1).abs() < 1e-5 * scale).all()
    assert ((clip.sum(2) - 1).abs() < 1e-5 * scale).all()
    assert (clip >= 0).all()
    assert (state["negative_weights"][:4] == (keep < 0).sum((1, 2))).all()
    assert (state["negative_weights"][4:] == state["negative_weights"][:4]).all()
    untouched = (keep >= 0).all(2)
    assert torch.equal(keep[untouched], clip[untouched])


class Recorded(TorchDispatchMode):
    """Counts every operation that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.boolean_index = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        if str(func).startswith("aten.index"):
            indices = [i for a in args if isinstance(a, (list, tuple)) for i in a]
            self.boolean_index |= any(isinstance(i, Tensor) and i.dtype == torch.bool for i in indices)
        return func(*args, **(kwargs or {}))


# What would make the host wait for the device, or give a result whose shape depends on values.
WAITS = (
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "unique",
    "is_nonzero",
    "equal",
    "bincount",
    "_to_cpu",
)


def traced(fleet: list[Method], groups: int, batch: int = 16) -> Recorded:
    ids = torch.arange(groups)
    zeros = torch.zeros(groups)
    reference = DenseReference.from_outcomes(
        correct=zeros, losses=zeros, groups=ids, names=[str(g) for g in range(groups)]
    )
    plan = Plan.of(fleet, reference, samples=groups)
    state, shape = constraint.init(plan), (len(fleet), batch)
    inputs = (torch.rand(shape), torch.rand(shape) < 0.5, torch.randint(-1, groups, shape))
    with Recorded() as recorded:
        constraint.step(plan, state, *inputs, index=inputs[2].clamp_min(0), active=ON)
    return recorded


@pytest.mark.parametrize("name", [*VARIANTS, "mixed"])
def test_no_host_sync_and_as_many_operations_for_1000_groups_as_for_10(name: str) -> None:
    fleet = list(VARIANTS.values()) if name == "mixed" else [VARIANTS[name]]
    if name == "mixed":
        fleet = [method for method in fleet if method.rows != "pairs"]  # 27 runs · 1000² would be slow here
    few, many = traced(fleet, groups=10), traced(fleet, groups=1000, batch=200)
    assert few.seen == many.seen
    assert few.seen.total() < 300
    names = {name.split(".")[1] for name in few.seen}
    assert not names & set(WAITS)
    assert not few.boolean_index


def test_the_trace_would_notice_a_sync() -> None:
    with Recorded() as recorded:
        values = torch.arange(3)
        values[values > 1].sum().item()
    assert {"aten.nonzero.default", "aten._local_scalar_dense.default"} & set(recorded.seen)
    assert recorded.boolean_index


@pytest.mark.slow
def test_step_compiles_as_one_graph() -> None:
    reference, batches = stream(seed=10, steps=4, batch=7)
    fleet = [
        methods.ceag(tolerance=0.0, k=3, dual_lr=0.5),
        methods.el(),
        methods.pairwise(tolerance=0.0, k=3),
    ]
    plan = Plan.of(fleet, reference, samples=60)
    compiled = torch.compile(constraint.step, fullgraph=True, backend="eager")
    eager_state = compiled_state = constraint.init(plan)
    for batch in batches:
        losses, correct, groups, _ = (part.expand(3, -1) for part in batch)
        expected, eager_state = constraint.step(plan, eager_state, losses, correct, groups, active=ON)
        weights, compiled_state = compiled(plan, compiled_state, losses, correct, groups, active=ON)
        torch.testing.assert_close(weights, expected)
    assert all(torch.equal(eager_state[name], compiled_state[name]) for name in eager_state)


def test_memory_grows_with_the_groups_and_not_with_their_product() -> None:
    names = [str(g) for g in range(100_000)]
    ones = torch.ones(100_000)
    reference = DenseReference.from_outcomes(
        correct=ones, losses=ones, groups=torch.arange(100_000), names=names
    )
    plan = Plan.of([methods.ceag(tolerance=0.01), methods.nft()], reference, samples=0)
    state = constraint.init(plan)
    assert state["ring"].shape == (2, 100_002, 40)
    assert state["ring"].element_size() == 1
    assert sum(value.nbytes for value in state.values()) < 2 * 100_002 * (40 + 40)
    with pytest.raises(
        ValueError, match=r"100,000 groups are 9,999,900,000 constraints.*limit is 1,000.*samples=0"
    ):
        Plan.of(
            [methods.all_pairs(tolerance=0.1), methods.ceag(tolerance=0.1, estimator="table")],
            reference,
            samples=0,
        )


def test_errors_of_a_fleet() -> None:
    empty = perfect([3, 0, 2])
    with pytest.raises(ValueError, match=r'Group "b" has no training samples'):
        Plan.of([methods.ceag(tolerance=0.1)], empty, samples=5)
    assert Plan.of([methods.nft()], empty, samples=5).runs == 1
    with pytest.raises(ValueError, match="no methods"):
        Plan.of([], empty, samples=5)
    plan = Plan.of([methods.ceag(tolerance=0.1, estimator="table")], perfect([2]), samples=2)
    with pytest.raises(ValueError, match="needs index"):
        feed(plan, constraint.init(plan), [1], [0])
    sentence = (
        'Group "a" has 3 training samples; a ring of 40 fills only after about 13 epochs. '
        "Merge groups, lower k, or use the table estimator."
    )
    assert constraint.slow_rings([methods.ceag(tolerance=0.1)], perfect([3, 40])) == [sentence]
    assert constraint.slow_rings([methods.ceag(tolerance=0.1, estimator="table")], perfect([3, 40])) == []


def test_net_multipliers_of_groups() -> None:
    plan = Plan.of(
        [
            methods.pairwise(tolerance=0.0, dual_lr=1.0, k=1),
            methods.two_sided(tolerance=0.0, dual_lr=1.0, k=1),
        ],
        perfect([2, 2, 2]),
        samples=6,
    )
    _, state = feed(plan, constraint.init(plan), [1, 0, 0], [0, 1, 2])
    third = 1 / 3
    torch.testing.assert_close(
        constraint.group_weights(plan, state), torch.tensor([[-1.0, 1.0, 0.0], [-2 * third, third, third]])
    )
    assert constraint.multipliers(plan, state).shape == (2, 3 + 3 + 1)


@pytest.mark.parametrize("estimator", ["batch", "table"])
def test_a_convex_problem_is_solved_to_its_constrained_optimum(estimator: Any) -> None:
    """Losses ½|θ - a_i|²: L_g - L is linear in θ, so CELG is a quadratic programme that scipy can solve."""
    sizes, tolerance = [30, 10, 5], 0.1
    generator = torch.Generator().manual_seed(11)
    groups = torch.cat([torch.full((n,), g) for g, n in enumerate(sizes)])
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    points = centres[groups] + 0.1 * torch.randn(45, 2, generator=generator, dtype=torch.float64)
    dense_loss = 0.3 * torch.ones(45) + 0.4 * (groups == 2)
    reference = DenseReference.from_outcomes(
        correct=torch.ones(45), losses=dense_loss, groups=groups, names=["a", "b", "c"]
    )

    def losses(theta: Tensor) -> Tensor:
        return 0.5 * (theta - points).square().sum(1)

    def excess(theta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        gap = losses(torch.from_numpy(theta)) - dense_loss.double()
        return np.array([(gap[groups == g].mean() - gap.mean()).item() for g in range(3)])

    expected = minimize(
        lambda theta: losses(torch.from_numpy(theta)).mean().item(),
        np.zeros(2),
        constraints={"type": "ineq", "fun": lambda theta: tolerance - excess(theta)},
        method="SLSQP",
        options={"ftol": 1e-14},
    )
    method = methods.celg(tolerance=tolerance, dual_lr=0.1, negative="keep", estimator=estimator)
    plan = Plan.of([method], reference, samples=45, dtype=torch.float64)
    state, theta = constraint.init(plan), torch.zeros(2, dtype=torch.float64)
    for _ in range(1500):
        leaf = theta.requires_grad_()
        cost = losses(leaf)
        inputs = (cost.detach()[None], torch.ones(1, 45).bool(), groups[None])
        weights = constraint.step_(plan, state, *inputs, index=torch.arange(45)[None], active=ON)
        (slope,) = torch.autograd.grad((weights[0] * cost).sum(), leaf)
        theta = (theta - 0.1 * slope).detach()
    np.testing.assert_allclose(theta.numpy(), expected.x, atol=1e-5)
    assert (excess(np.zeros(2)) > tolerance).any()
    assert (excess(theta.numpy()) <= tolerance + 1e-5).all()
    active = constraint.multipliers(plan, state)[0] > 1e-3
    np.testing.assert_allclose(excess(theta.numpy())[active.numpy()], tolerance, atol=1e-5)

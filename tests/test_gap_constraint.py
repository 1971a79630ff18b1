"""GapConstraint in a loop of one's own: dtypes, copies, state, accumulation, errors."""

import copy
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from evenprune import constraint, methods
from evenprune.constraint import Method, Plan
from evenprune.draws import sample_order
from evenprune.gap_constraint import GapConstraint
from evenprune.masks import Masks, schedule
from evenprune.predict import predict
from evenprune.recipe import Run
from evenprune.reference import DenseReference
from evenprune.training import fit
from tests.training_cases import data_for, images, network, recipe, trained

NAMES = ("young", "old", "Asian × 90+")


def reference(samples: tuple[int, ...] = (60, 50, 40)) -> DenseReference:
    groups = torch.cat([torch.full((n,), g) for g, n in enumerate(samples)])
    losses = torch.full((len(groups),), 0.1)
    return DenseReference.from_outcomes(
        correct=torch.ones(len(groups)), losses=losses, groups=groups, names=NAMES
    )


def batch(seed: int, size: int = 12, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, 4, generator=generator).to(dtype)
    labels = torch.randint(4, (size,), generator=generator)
    return logits, labels, torch.arange(size) % 3


def eager(**changes: float) -> Method:
    return methods.ceag(**{"tolerance": 0.0, "dual_lr": 0.5, "k": 4, **changes})  # type: ignore[arg-type]


def test_loss_is_the_weighted_cross_entropy_of_the_step() -> None:
    guard = GapConstraint(reference(), eager())
    plan = Plan.of([eager()], reference(), samples=150)
    state = constraint.init(plan)
    for seed in range(6):
        logits, labels, groups = batch(seed)
        losses = functional.cross_entropy(logits, labels, reduction="none")
        correct = logits.argmax(1) == labels
        on = torch.tensor(True)
        weights, state = constraint.step(plan, state, losses[None], correct[None], groups[None], active=on)
        torch.testing.assert_close(guard(logits, labels, groups), (weights[0] * losses).sum())
    assert torch.equal(guard.multipliers, constraint.multipliers(plan, state)[0])
    assert torch.equal(guard.excess_gaps, state["psi"][0])
    assert guard.counted.all()
    assert guard.multipliers.max() > 0
    assert guard.negative_weights == state["negative_weights"][0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_dtype(dtype: torch.dtype) -> None:
    guard = GapConstraint(reference(), eager())
    for seed in range(4):
        logits, labels, groups = batch(seed, dtype=dtype)
        logits.requires_grad_()
        loss = guard(logits, labels, groups)
        loss.backward()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert (loss.dtype, guard.multipliers.dtype) == (wide, wide)
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    assert logits.grad.isfinite().all()
    losses = torch.rand(12, dtype=dtype)
    assert guard.weights(losses, losses > 0.5, groups).dtype == wide


def test_multipliers_do_not_follow_the_model_to_half_precision() -> None:
    guard = GapConstraint(reference(), eager(dual_lr=1e-6))
    for seed in range(4):
        guard(*batch(seed))
    before = guard.multipliers
    guard.half()
    assert torch.equal(guard.multipliers, before)
    guard(*batch(5))
    assert guard.multipliers.dtype == torch.float32


def test_off_while_pruning_and_in_evaluation_mode() -> None:
    guard = GapConstraint(reference(), eager())
    logits, labels, groups = batch(0)
    plain = functional.cross_entropy(logits, labels)
    start = {name: value.clone() for name, value in guard.state_dict().items()}
    guard.active = False
    torch.testing.assert_close(guard(logits, labels, groups), plain)
    guard.active = True
    guard.eval()
    torch.testing.assert_close(guard(logits, labels, groups), plain)
    assert all(torch.equal(start[name], value) for name, value in guard.state_dict().items())
    guard.train()
    guard(logits, labels, groups)
    assert not torch.equal(start["state_ring_count"], guard.state_dict()["state_ring_count"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_dict_and_deepcopy_continue_where_the_original_does(dtype: torch.dtype) -> None:
    method = methods.two_sided(tolerance=0.0, dual_lr=0.5, k=4, dual="nupi", kp=1.0)
    guard = GapConstraint(reference(), method)
    for seed in range(3):
        guard(*batch(seed, dtype=dtype))
    twin = copy.deepcopy(guard)
    loaded = GapConstraint(reference(), method)
    once = {f"state_{name}": torch.zeros(1) for name in ("max_psi", "violation")}  # older versions kept these
    loaded.load_state_dict({**guard.state_dict(), **once})
    for seed in range(3, 6):
        inputs = batch(seed, dtype=dtype)
        losses = {float(one(*inputs)) for one in (guard, twin, loaded)}
        assert len(losses) == 1
    assert torch.equal(guard.multipliers, twin.multipliers)
    assert torch.equal(guard.multipliers, loaded.multipliers)
    guard(*batch(9, dtype=dtype))
    assert not torch.equal(guard.multipliers, twin.multipliers)  # a copy, not a view


def test_gradient_accumulation() -> None:
    """m micro-batches with loss / m and dual_lr / m: the gradient and multipliers of one batch.

    Exact here: every micro-batch has each group in the same proportion, and the estimate stays the same.
    """
    m, x, labels, groups = 4, torch.ones(24, 5), torch.ones(24).long(), torch.arange(24) % 3
    wrong = groups == 2
    logits_of = torch.where(wrong[:, None], torch.tensor([4.0, 0.0]), torch.tensor([0.0, 4.0]))

    def trained(guard: GapConstraint, parts: int) -> Tensor:
        model = nn.Linear(5, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        for piece in torch.arange(24).chunk(parts):
            logits = model(x[piece]) + logits_of[piece]
            (guard(logits, labels[piece], groups[piece]) / parts).backward()
        assert model.bias.grad is not None
        return model.bias.grad

    whole = GapConstraint(reference(), eager(k=1))
    micro = GapConstraint(reference(), eager(k=1, dual_lr=0.5 / m))
    for _ in range(2):
        expected, slope = trained(whole, 1), trained(micro, m)
    torch.testing.assert_close(micro.multipliers, whole.multipliers)
    assert whole.multipliers[2] > 0.5
    # Multipliers grow within the accumulated batch, so its gradient lies between the last two whole steps.
    held = copy.deepcopy(whole)
    held.method = eager(k=1, dual_lr=0.0)
    held.plan = Plan.of([held.method], reference(), samples=150)
    torch.testing.assert_close(trained(held, m), trained(held, 1))
    assert (slope.abs() <= expected.abs() + 1e-6).all()


def test_table_needs_the_index_and_keeps_a_cell_per_sample() -> None:
    guard = GapConstraint(reference(), methods.ceag(tolerance=0.0, estimator="table"))
    assert guard.get_buffer("state_table").shape == (1, 151)
    logits, labels, groups = batch(0)
    with pytest.raises(ValueError, match="needs index"):
        guard(logits, labels, groups)
    with pytest.raises(ValueError, match="index reaches from 145 to 156, outside 0…149"):
        guard(logits, labels, groups, torch.arange(145, 157))
    assert guard(logits, labels, groups, torch.arange(12)).isfinite()


def test_wrong_values_are_all_told_at_once() -> None:
    guard = GapConstraint(reference(), eager())
    logits, labels, groups = batch(0)
    labels[3], groups[5], groups[6] = 4, 3, -2
    message = (
        r"1 labels lie outside the 4 classes.*first is 4 at sample 3; 2 group ids.*first is 3 at sample 5"
    )
    with pytest.raises(ValueError, match=message):
        guard(logits, labels, groups)
    with pytest.raises(ValueError, match=message):
        guard.validate(labels, groups, 4)
    with pytest.raises(ValueError, match="2 group ids"):
        guard.weights(torch.ones(12), torch.ones(12).bool(), groups)
    assert guard.multipliers.sum() == 0  # nothing was pushed
    assert not guard.get_buffer("state_ring_count").any()
    guard.validate(torch.tensor([0, 3]), torch.tensor([-1, 2]), 4)


def test_wrong_shapes_dtypes_and_devices_are_all_told_at_once() -> None:
    guard = GapConstraint(reference(), eager())
    logits, labels, groups = batch(0)
    with pytest.raises(
        ValueError, match=r"labels has shape \(11,\), expected \(12,\).*groups is torch.int32"
    ):
        guard(logits, labels[1:], groups.int())
    with pytest.raises(
        ValueError, match=r"logits are torch.float32 of shape \(12,\), expected floats \[batch, classes\]"
    ):
        guard(logits[:, 0], labels, groups)
    with pytest.raises(ValueError, match=r"labels on meta, the constraint on cpu: call constraint.to"):
        guard(logits, labels.to("meta"), groups)


def test_small_groups_are_warned_of_in_words() -> None:
    with pytest.warns(UserWarning, match="fills only") as caught:
        GapConstraint(reference((60, 50, 3)), methods.ceag(tolerance=0.01))
    assert [str(warning.message) for warning in caught] == [
        'Group "Asian × 90+" has 3 training samples; a ring of 40 fills only after about 13 epochs. '
        "Merge groups, lower k, or use the table estimator."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GapConstraint(reference((60, 50, 3)), methods.ceag(tolerance=0.01, estimator="table"))
    with pytest.raises(ValueError, match=r'Group "Asian × 90\+" has no training samples'):
        GapConstraint(reference((60, 50, 0)), methods.ceag(tolerance=0.01))


def test_a_small_network_learns_with_it() -> None:
    """Two groups, one of them rare and with labels of its own: CEAG must bring its accuracy up."""
    generator = torch.Generator().manual_seed(0)
    groups = (torch.arange(200) % 10 == 0).long()
    x = torch.randn(200, 2, generator=generator)
    labels = ((x[:, 0] + 1.5 * groups * x[:, 1]) > 0).long()
    dense = DenseReference.from_outcomes(
        correct=torch.ones(200), losses=torch.zeros(200), groups=groups, names=("most", "few")
    )

    def gap(method: Method) -> float:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        guard = GapConstraint(dense, method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        for _ in range(300):
            loss = guard(model(x), labels, groups, torch.arange(200))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (model(x).argmax(1) == labels).float()
        return float(right.mean() - right[groups == 1].mean())

    plain = gap(methods.nft())
    even = gap(methods.ceag(tolerance=0.02, dual_lr=0.05, estimator="table"))
    assert plain > 0.08
    assert even <= 0.03


@pytest.mark.parametrize("caution", [0.0, 0.5])
def test_following_held_out_samples_in_a_loop_of_your_own_is_what_fit_does(caution: float) -> None:
    wide = torch.float64
    train, held = images(missing=False, dtype=wide), images(90, seed=7, missing=False, dtype=wide)
    model = trained(network(dtype=wide), train)
    data = data_for(model, train, heldout=held)
    method = methods.ceag(
        tolerance=0.01, dual_lr=0.3, multipliers_on="heldout", estimator="pass", refresh=3, caution=caution
    )
    run = Run(method=method, sparsity=0.8, seed=7)
    settings = recipe(pruning_epochs=1, scheduler=None, weight_decay=0.0)
    (fitted,) = fit(model, data, runs=[run], recipe=settings)

    dense = predict(model, held)
    own = copy.deepcopy(model)
    masks = Masks.of(own)
    masks.prune_(own, 0.8)
    guard = GapConstraint(data.reference, method, heldout=dense.reference(data.reference.names))
    optimizer = settings.optimizer(list(own.parameters()))  # type: ignore[arg-type]
    step = 0
    for epoch in range(settings.epochs):
        guard.active = epoch >= settings.pruning_epochs
        for index in torch.split(sample_order(7, epoch, len(train)), settings.batch_size):
            if guard.active and step % method.refresh == 0:
                own.eval()
                with torch.no_grad():
                    guard.follow(own(held.inputs), held.labels, held.groups, dense_correct=dense.correct)
            step += guard.active
            own.train()
            loss = guard(own(train.inputs[index]), train.labels[index], train.groups[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            masks.apply_(own)
    assert guard.multipliers.max() > 0
    torch.testing.assert_close(guard.multipliers, fitted.multipliers[-1].to(wide), rtol=1e-6, atol=1e-8)
    for mine, theirs in zip(own.parameters(), fitted.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("while_pruning", [False, True])
def test_constraints_act_from_the_end_of_pruning_or_from_the_first_epoch_on(while_pruning: bool) -> None:
    """The same training as a plain loop, whose sparsity rises in the first three epochs."""
    wide = torch.float64
    train = images(missing=False, dtype=wide)
    model = trained(network(dtype=wide), train)
    data = data_for(model, train)
    method = methods.ceag(tolerance=0.01, dual_lr=0.3, k=5, while_pruning=while_pruning)
    runs = [Run(method=one, sparsity=0.8, seed=7) for one in (methods.nft(), method)]
    settings = recipe(epochs=4, pruning_epochs=3, scheduler=None, weight_decay=0.0)
    _, fitted = fit(model, data, runs=runs, recipe=settings)

    own = copy.deepcopy(model)
    masks = Masks.of(own)
    guard = GapConstraint(data.reference, methods.ceag(tolerance=0.01, dual_lr=0.3, k=5))
    optimizer = settings.optimizer(list(own.parameters()))  # type: ignore[arg-type]
    for epoch in range(settings.epochs):
        if epoch < 3:
            masks.prune_(own, schedule(epoch, final=0.8, last=2))
        guard.active = while_pruning or epoch >= 3
        for index in torch.split(sample_order(7, epoch, len(train)), settings.batch_size):
            loss = guard(own(train.inputs[index]), train.labels[index], train.groups[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            masks.apply_(own)
        moved = bool(guard.multipliers.max() > 0)
        assert bool(fitted.multipliers[epoch].max() > 0) is moved
        assert moved is (while_pruning or epoch == 3)
        told = fitted.history[epoch]["multiplier_sum"]
        assert (told is None) is (not while_pruning and epoch < 3)
        theirs = fitted.multipliers[epoch].to(wide)
        torch.testing.assert_close(guard.multipliers.to(wide), theirs, rtol=1e-6, atol=1e-8)
    for mine, theirs in zip(own.parameters(), fitted.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-8)


def passing(**more: Any) -> Method:
    return methods.ceag(tolerance=0.0, multipliers_on="heldout", estimator="pass", refresh=10, **more)


def test_training_batches_do_not_move_what_follows_held_out_samples() -> None:
    guard = GapConstraint(reference(), passing(dual_lr=0.5), heldout=reference((6, 4, 2)))
    guard(*batch(0))
    assert guard.multipliers.tolist() == [0, 0, 0]
    logits, labels, groups = batch(1)
    groups = torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
    guard.active = False
    guard.follow(logits, labels, groups)
    assert guard.multipliers.tolist() == [0, 0, 0]
    guard.active = True
    guard.eval().follow(logits, labels, groups)  # as after model.eval(), where it is a part of the model
    moved = guard.train().multipliers
    assert moved.max() > 0
    assert guard.counted.all()
    guard(*batch(2))
    assert torch.equal(guard.multipliers, moved)
    again = GapConstraint(reference(), passing(dual_lr=0.5), heldout=reference((6, 4, 2)))
    again.load_state_dict(guard.state_dict())
    assert torch.equal(again.multipliers, moved)


def test_a_follow_that_is_forgotten_is_told_once() -> None:
    guard = GapConstraint(reference(), passing(), heldout=reference((6, 4, 2)))
    logits, labels, _ = batch(1)
    groups = torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
    guard.active = False
    for step in range(30):
        guard(*batch(step))  # pruning: nothing is followed yet
    guard.active = True
    for step in range(40):
        if step % 20 == 0:  # every second time: late, and not forgotten
            guard.follow(logits, labels, groups)
        guard(*batch(step))  # 20 after the last one
    with pytest.warns(UserWarning, match=r"21 steps without follow\(\).*every 10 steps"):
        guard(*batch(0))
    for step in range(50):
        guard(*batch(step))


def test_the_warning_points_at_the_line_that_calls_the_constraint() -> None:
    logits, labels, groups = batch(1)
    called, weighed = (GapConstraint(reference(), passing(), heldout=reference((6, 4, 2))) for _ in range(2))
    for _ in range(20):
        called(logits, labels, groups)
        weighed.weights(logits[:, 0], labels == 0, groups)
    with pytest.warns(UserWarning, match=r"without follow\(\)") as of_call:
        called(logits, labels, groups)
    with pytest.warns(UserWarning, match=r"without follow\(\)") as of_weights:
        weighed.weights(logits[:, 0], labels == 0, groups)
    assert [told[0].filename for told in (of_call, of_weights)] == [__file__] * 2


def test_what_is_wrong_with_held_out_samples_is_said() -> None:
    by_batch = methods.ceag(tolerance=0.01, multipliers_on="heldout")
    words = r"(?s)with estimator='ring'.*add estimator=\"pass\".*needs heldout=DenseReference.measure"
    with pytest.raises(ValueError, match=words):
        GapConstraint(reference(), by_batch)
    with pytest.raises(ValueError, match="heldout is given, but the multipliers follow training batches"):
        GapConstraint(reference(), eager(), heldout=reference())
    with pytest.raises(ValueError, match="measured to do on the training samples: hold out samples"):
        GapConstraint(reference(), passing(), heldout=reference())
    renamed = replace(reference(), names=("a", "b", "c"))
    with pytest.raises(ValueError, match=r"or their names differ: measure with names=reference\.names"):
        GapConstraint(reference(), passing(), heldout=renamed)
    with pytest.raises(ValueError, match=r"needs heldout=DenseReference\.measure"):
        GapConstraint(reference(), passing(), heldout=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"follow\(\) is for methods with multipliers_on"):
        GapConstraint(reference(), eager()).follow(*batch(0))


def test_only_the_samples_that_the_dense_model_was_measured_on_are_followed() -> None:
    logits, labels, _ = batch(0)
    groups = torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
    guard = GapConstraint(reference(), passing(caution=1.0), heldout=reference((6, 4, 2)))
    right = torch.ones(12, dtype=torch.bool)  # as the reference has it
    with pytest.raises(ValueError, match="caution needs dense_correct"):
        guard.follow(logits, labels, groups)
    with pytest.raises(ValueError, match=r"(?s)groups is torch\.int32, .*; dense_correct is torch\.float32"):
        guard.follow(logits, labels, groups.int(), dense_correct=right.float())
    with pytest.raises(ValueError, match="takes all 12 held-out samples at once, not 3"):
        guard.follow(logits[:3], labels[:3], groups[:3], dense_correct=right[:3])
    with pytest.raises(ValueError, match="group 'young' has 2 samples here, and had 6 where the dense model"):
        guard.follow(logits, labels, 2 - groups, dense_correct=right)
    with pytest.raises(ValueError, match="dense_correct is not what the dense model was measured with"):
        guard.follow(logits, labels, groups, dense_correct=~right)
    with pytest.raises(ValueError, match="1 labels lie outside the 4 classes"):
        guard.follow(logits, torch.where(torch.arange(12) == 3, 4, labels), groups, dense_correct=right)
    guard.follow(logits, labels, groups, dense_correct=right)
    assert guard.counted.all()


def test_what_only_a_whole_training_can_do_is_refused() -> None:
    more: dict[str, Any] = {"distill": 0.5, "sampling": "balanced", "targets": "corrected"}
    method = methods.ceag(tolerance=0.01, estimator="pass", refresh=9, multipliers_on="folds", **more)
    words = r"(?s)multipliers_on='folds' is what fit.*distill=0.5.*targets='corrected'.*sampling='balanced'"
    with pytest.raises(ValueError, match=words):
        GapConstraint(reference(), method)
    early = methods.ceag(tolerance=0.01, while_pruning=True)
    with pytest.raises(ValueError, match=r"leave it out: constraint\.active says whether it acts"):
        GapConstraint(reference(), early)

"""Channels that stand still: the same in training and evaluation, in 16 bits and in 32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from evenprune import methods
from evenprune.predict import predict
from evenprune.recipe import Run
from evenprune.still_norms import settle_
from evenprune.training import fit
from tests.still_channels import data, narrow, recipe, still


@pytest.mark.parametrize(("lr", "seed"), [(0.05, 0), (0.02, 1)])
def test_a_pruned_model_answers_alike_in_training_and_evaluation_and_in_every_precision(
    lr: float, seed: int
) -> None:
    """With norms as they were, 33 and 0 % of the answers agreed; unsettled, 97 and 0 % (in 16 bits)."""
    run = Run(method=methods.nft(), sparsity=0.93, seed=seed)
    (one,) = fit(narrow(), data(), runs=[run], recipe=recipe(lr))
    model, split = one.model, data().train
    assert still(model) > 0  # else this shows nothing
    with torch.no_grad():
        by_batch = copy.deepcopy(model).train()(split.inputs).argmax(1)
    answers = [predict(model, split, precision=kind).predictions for kind in ("float32", "bfloat16")]
    for answer in answers:
        assert (answer == by_batch).float().mean() > 0.8
    assert (answers[0] == answers[1]).float().mean() > 0.95


class Constant(nn.Module):
    """A channel that does not depend on the input, and one that does."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.norm = nn.Parameter(torch.tensor(0.7)), nn.BatchNorm2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.value.expand_as(x), x], dim=1))  # type: ignore[no-any-return]


def test_only_what_stands_still_is_settled_and_it_gives_its_bias() -> None:
    model, random = Constant(), torch.Generator().manual_seed(0)
    nn.init.constant_(model.norm.bias, 0.25)
    for _ in range(300):
        model(torch.randn(8, 1, 4, 4, generator=random))
    model.value.data += 0.01  # as a step of the optimizer would
    inputs = torch.randn(8, 1, 4, 4, generator=random)
    model.eval()
    assert (model(inputs)[:, 0] - 0.25).abs().max() > 3
    before = model(inputs)[:, 1]
    settle_(model)
    assert model.norm.weight.tolist() == [0.0, 1.0]
    torch.testing.assert_close(model(inputs)[:, 0], torch.full((8, 4, 4), 0.25))
    assert torch.equal(model(inputs)[:, 1], before)


def test_a_channel_that_moves_again_has_a_gradient_again() -> None:
    norm = nn.BatchNorm2d(1)
    nn.init.zeros_(norm.weight)
    F.mse_loss(norm(torch.randn(8, 1, 4, 4)), torch.randn(8, 1, 4, 4)).backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.item() != 0


def test_norms_without_weights_or_statistics_are_left_alone() -> None:
    bare = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.BatchNorm2d(1, track_running_stats=False))
    settle_(bare)
    assert bare[1].weight.item() == 1

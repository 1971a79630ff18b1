"""What a recipe means, and which runs are refused."""

from functools import partial

import pytest
from torch import nn
from torch.optim import SGD

import evenprune
from evenprune import InputProblems, methods
from evenprune.loop import parameter_groups
from evenprune.recipe import Recipe
from tests.test_readme import samples, small_model


def decays(recipe: Recipe) -> list[float]:
    network = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = recipe.optimizer(parameter_groups(network, recipe))
    return [group["weight_decay"] for group in optimizer.param_groups]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Recipe(optimizer=partial(SGD, lr=0.1, weight_decay=0.5)), [0.5, 0.0]),  # the factory's own is kept
        (Recipe(optimizer=partial(SGD, lr=0.1, weight_decay=0.5), weight_decay=0.1), [0.1, 0.0]),
        (Recipe(weight_decay=0.1, decay_everything=True), [0.1]),
        (Recipe(), [0.0, 0.0]),
    ],
)
def test_weight_decay_reaches_weights_and_spares_biases_and_norms(recipe, expected):
    assert decays(recipe) == expected


@pytest.mark.parametrize("twice", [{"seeds": [0, 0]}, {"method": [methods.nft(), methods.nft()]}])
def test_the_same_run_twice_is_refused(twice):
    settings = {"method": methods.nft(), "seeds": 1} | twice
    with pytest.raises(InputProblems, match="given more than once"):
        evenprune.prune(
            small_model(),
            train=samples(200, 0),
            test=samples(200, 1),
            sparsity=0.5,
            tolerance=0.1,
            **settings,
        )

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


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Recipe(precision="bf16"), "recipe.precision is 'bf16'; choose 'float32' or 'bfloat16'"),
        (Recipe(scheduler_steps="batches"), "recipe.scheduler_steps is 'batches'"),
        (Recipe(scope="layers"), "recipe.scope is 'layers'"),
    ],
)
def test_misspelt_words_are_refused(recipe, said):
    with pytest.raises(InputProblems, match=said):
        evenprune.prune(
            small_model(),
            train=samples(200, 0),
            test=samples(200, 1),
            groups="race",
            sparsity=0.5,
            method=methods.nft(),
            tolerance=0.1,
            recipe=recipe,
        )


@pytest.mark.parametrize("setting", ["multipliers_on", "keep_on"])
def test_the_audit_split_steers_nothing(setting):
    more = {"keep": "feasible"} if setting == "keep_on" else {}
    method = methods.ceag(tolerance=0.1, k=4, **{setting: "test"}, **more)
    with pytest.raises(InputProblems, match=f"{setting}='test', but the test data is for the audit"):
        evenprune.prune(
            small_model(),
            train=samples(200, 0),
            test=samples(200, 1),
            groups="race",
            sparsity=0.5,
            method=method,
        )


def test_an_option_that_a_recipe_has_not_is_told_with_where_it_is() -> None:
    with pytest.raises(TypeError, match=r"Recipe has no option lr: it is the optimizer's, as optimizer=part"):
        Recipe(lr=0.1)
    with pytest.raises(TypeError, match=r"^Recipe has no option epoch; did you mean epochs\?$"):
        Recipe(epoch=3)
    with pytest.raises(TypeError, match=r"momentum: .*\. Recipe has no option colour; it takes epochs, "):
        Recipe(colour=1, momentum=0.5)

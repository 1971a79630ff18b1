"""Random changes of images: pure functions of the draws, per sample, the same in a fleet and alone."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from evenprune import methods, prune
from evenprune.augment import Both, Colour, Crop, Flip, parse, unfit
from evenprune.checkpoint import describe
from evenprune.draws import augment_draws
from evenprune.recipe import Augment, Run, Split
from evenprune.tally import InputProblems
from evenprune.training import fit
from tests.training_cases import data_for, images, network, precisely, recipe, trained

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ALL: list[Augment] = [
    Flip(),
    Crop(2),
    Colour(),
    Colour(mean=MEAN, std=STD),
    Both(Flip(), Both(Crop(1), Colour(0.5, 0.5, 0.5, MEAN, STD))),
]


def pixels(samples: int = 6, *, channels: int = 3, side: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(samples, channels, side, side, generator=torch.Generator().manual_seed(seed))


def normalised(inputs: Tensor) -> Tensor:
    return (inputs - torch.tensor(MEAN).view(-1, 1, 1)) / torch.tensor(STD).view(-1, 1, 1)


def draws(samples: int, count: int, *, seed: int = 1) -> Tensor:
    return torch.rand(samples, count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("augment", ALL, ids=str)
def test_a_sample_changes_by_its_own_draws_alone(augment: Augment) -> None:
    inputs, uniform = pixels(), draws(6, augment.draws)
    together = augment(inputs, uniform)
    assert together.shape == inputs.shape
    assert torch.equal(together, augment(inputs.clone(), uniform.clone()))
    for i in range(6):
        assert torch.equal(together[i : i + 1], augment(inputs[i : i + 1], uniform[i : i + 1]))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(together[order], augment(inputs[order], uniform[order]))


@pytest.mark.parametrize("augment", ALL, ids=str)
def test_inputs_are_not_written_to(augment: Augment) -> None:
    inputs, uniform = pixels(), draws(6, augment.draws)
    kept = inputs.clone(), uniform.clone()
    augment(inputs, uniform)
    assert torch.equal(inputs, kept[0])
    assert torch.equal(uniform, kept[1])


def test_flip_mirrors_half_and_crop_shifts_by_whole_pixels() -> None:
    inputs = pixels(2)
    flipped = Flip()(inputs, torch.tensor([[0.1], [0.9]]))
    assert torch.equal(flipped[0], inputs[0].flip(-1))
    assert torch.equal(flipped[1], inputs[1])
    shifted = Crop(1)(inputs, torch.tensor([[0.5, 0.5], [0.0, 0.99]]))
    assert torch.equal(shifted[0], inputs[0])
    assert torch.equal(shifted[1, :, 1:, :-1], inputs[1, :, :-1, 1:])
    assert not shifted[1, :, 0].any()


# --- colour ---


def plain_colour(image: Tensor, factors: list[float]) -> Tensor:
    """One image [3, height, width] in 0 … 1, written out: brightness, then contrast, then saturation."""
    brightness, contrast, saturation = factors
    image = (image * brightness).clamp(0, 1)
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=image.dtype)
    middle = sum(weights[c] * image[c] for c in range(3)).mean()
    image = (contrast * image + (1 - contrast) * middle).clamp(0, 1)
    grey = sum(weights[c] * image[c] for c in range(3))
    return torch.stack([(saturation * image[c] + (1 - saturation) * grey).clamp(0, 1) for c in range(3)])


def test_colour_equals_the_plain_formula_on_pixels_and_on_normalised_inputs() -> None:
    inputs, uniform, strengths = pixels(), draws(6, 3), (0.3, 0.6, 1.5)
    expected = []
    for image, own in zip(inputs, uniform, strict=True):
        factors = [
            max(0.0, 1 - s) + float(u) * (1 + s - max(0.0, 1 - s))
            for s, u in zip(strengths, own, strict=True)
        ]
        expected.append(plain_colour(image.double(), factors))
    truth = torch.stack(expected).float()
    torch.testing.assert_close(Colour(*strengths)(inputs, uniform), truth, rtol=0, atol=1e-6)
    changed = Colour(*strengths, mean=MEAN, std=STD)(normalised(inputs), uniform)
    torch.testing.assert_close(changed, normalised(truth), rtol=0, atol=1e-5)


@pytest.mark.parametrize("colour", [Colour(0, 0, 0), Colour(0, 0, 0, MEAN, STD)], ids=str)
def test_no_strength_changes_nothing(colour: Colour) -> None:
    inputs = normalised(pixels())
    assert torch.equal(colour(inputs, draws(6, 3)), inputs)


def test_draws_of_one_half_are_the_factor_one() -> None:
    inputs = pixels()
    unchanged = Colour(0.4, 0.4, 0.4)(inputs, torch.full((6, 3), 0.5))
    torch.testing.assert_close(unchanged, inputs, rtol=0, atol=1e-6)


@settings(max_examples=60)
@given(
    strengths=st.tuples(*[st.floats(0, 3)] * 3),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 1000),
    extreme=st.booleans(),
)
def test_pixels_stay_pixels(
    strengths: tuple[float, float, float], channels: int, seed: int, extreme: bool
) -> None:
    inputs = pixels(channels=channels, seed=seed)
    uniform = draws(6, 3, seed=seed)
    if extreme:
        inputs, uniform = inputs.round(), uniform.round().clamp(max=1 - 2**-24)
    changed = Colour(*strengths)(inputs, uniform)
    assert changed.isfinite().all()
    assert changed.min() >= 0
    assert changed.max() <= 1


@settings(max_examples=40)
@given(st.floats(0, 1), st.floats(0, 0.999))
def test_grey_images_have_no_colour_to_change(strength: float, draw: float) -> None:
    grey = pixels(2, channels=1).expand(-1, 3, -1, -1)
    changed = Colour(0, 0, strength)(grey, torch.full((2, 3), draw))
    torch.testing.assert_close(changed, grey, rtol=0, atol=1e-6)


def test_brightness_goes_up_with_its_draw() -> None:
    inputs = pixels(1).expand(9, -1, -1, -1) / 2
    uniform = torch.full((9, 3), 0.5)
    uniform[:, 0] = torch.linspace(0, 0.99, 9)
    levels = Colour(0.5, 0, 0)(inputs, uniform).mean((1, 2, 3))
    assert (levels.diff() > 0).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"brightness": -0.1}, "brightness is -0.1"),
        ({"contrast": float("nan")}, "contrast is nan"),
        ({"saturation": float("inf")}, "saturation is inf"),
        ({"std": (0.2, 0.0, 0.2)}, "std positive"),
        ({"mean": ()}, "give both"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputProblems, match=message):
        Colour(**values)


def test_all_wrong_settings_are_told_at_once() -> None:
    with pytest.raises(InputProblems) as error:
        Colour(-1, -1, -1, std=(0.0,))
    assert len(error.value.problems) == 4


def test_images_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 or 3 channels.*\[2, 2, 5, 5\]"):
        Colour()(pixels(2, channels=2), draws(2, 3))
    with pytest.raises(ValueError, match="a mean of 3 and a std of 3 values for images of 1 channels"):
        Colour(mean=MEAN, std=STD)(pixels(2, channels=1), draws(2, 3))


def test_colour_compiles_to_one_graph() -> None:
    colour, inputs, uniform = Colour(0.3, 0.3, 0.3, MEAN, STD), normalised(pixels()), draws(6, 3)
    compiled = torch.compile(colour, backend="eager", fullgraph=True)
    assert torch.equal(compiled(inputs, uniform), colour(inputs, uniform))


def test_equal_settings_are_equal_experiments() -> None:
    assert describe(Colour()) == describe(Colour())
    assert describe(Colour()) != describe(Colour(contrast=0.3))
    assert describe(Colour()) != describe(Colour(mean=MEAN))


# --- names ---


@pytest.mark.parametrize(
    ("texts", "made"),
    [
        ([], None),
        (["flip"], Flip()),
        (["crop"], Crop(4)),
        (["crop:2"], Crop(2)),
        (["color:0.5"], Colour(0.5, 0.5, 0.5)),
        (["colour"], Colour()),
        (["flip", " crop : 3 ", "colour:0.1"], Both(Both(Flip(), Crop(3)), Colour(0.1, 0.1, 0.1))),
    ],
    ids=str,
)
def test_changes_by_their_names(texts: list[str], made: Augment | None) -> None:
    assert parse(texts) == (made, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flop", "augment is 'flop': choose of flip, crop:4 or colour:0.2"),
        ("", "choose of flip"),
        ("flip:3", "flip takes no number"),
        ("crop:x", "crop takes a whole number of pixels, such as crop:4"),
        ("crop:0", "crop takes a whole number"),
        ("crop:-2", "crop takes a whole number"),
        ("colour:x", "colour takes a positive strength, such as colour:0.2"),
        ("colour:0", "colour takes a positive strength"),
        ("colour:nan", "colour takes a positive strength"),
        ("colour:inf", "colour takes a positive strength"),
    ],
)
def test_names_that_are_no_change_are_refused(text: str, said: str) -> None:
    _, problems = parse([text, "flip", "flip"])
    assert said in problems[0]
    assert problems[1:][-1:] == ["augment names flip twice; once is enough"]


@pytest.mark.parametrize(
    ("shape", "told", "said"),
    [
        ((5,), "flip", r"flip is for images [channels, height, width]; the inputs have shape [5]"),
        ((8, 6, 3), "flip", r"flip is for images [channels, height, width]; the inputs have shape [8, 6, 3]"),
        ((3, 8, 6), "crop:6", "crop:6 shifts images of 6×8 out of sight; give 5 at most"),
        ((2, 8, 8), "colour", "colour is for 1 or 3 channels; the inputs have 2"),
    ],
)
def test_inputs_that_cannot_be_changed_so_are_told(shape: tuple[int, ...], told: str, said: str) -> None:
    augment, _ = parse(["flip", told] if told != "flip" else [told])
    (problem,) = unfit(augment, np.zeros((4, *shape), np.uint8))
    assert problem == f"augment: {said}"
    assert unfit(augment, np.zeros((4, 3, 8, 8), np.uint8)) == []
    assert unfit(None, np.zeros((4, *shape))) == []


def test_colours_are_for_pixels() -> None:
    colour, _ = parse(["colour"])
    inputs = np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 3, 2, 2)
    assert unfit(colour, inputs) == []
    (problem,) = unfit(colour, 4 * inputs - 2)
    assert "the inputs go from -2 to 2" in problem
    assert "Colour(mean=…, std=…)" in problem


def test_colours_undo_the_normalisation_of_the_data() -> None:
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    given = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
    (problem,) = unfit(Both(Flip(), Colour()), given, mean=mean, std=std)
    assert "Colour(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))" in problem
    fitting = Colour(mean=MEAN, std=STD)
    assert unfit(fitting, given, mean=mean, std=std) == []
    whole = torch.stack([torch.zeros(3, 5, 5), torch.ones(3, 5, 5)])
    for seen in (normalised(whole), normalised(whole).numpy()):
        assert unfit(fitting, seen) == []
        assert len(unfit(Colour(), seen)) == 1
    assert unfit(Colour(0, 0, 0), normalised(whole)) == []  # changes nothing
    assert unfit(fitting, torch.tensor([0.0, 1.0]).expand(4, 3, 1, 2), mean=mean, std=std) == []
    assert unfit(lambda inputs, uniform: inputs, torch.zeros(4, 5)) == []  # of the user's own


def test_prune_refuses_colours_that_do_not_fit() -> None:
    split = in_colour(images(80))
    model = trained(network(), split, epochs=2)
    asked = {"sparsity": 0.5, "method": methods.nft(), "tolerance": 0.1}
    told = recipe(epochs=2, pruning_epochs=1, augment=Colour())
    with pytest.raises(InputProblems, match=r"Colour\(mean=\(0.5,\), std=\(0.25,\)\)"):
        prune(model, train=split, test=in_colour(images(40)), recipe=told, **asked)


# --- in training ---


def in_colour(split: Split) -> Split:
    """Grey images in 0 … 1, normalised on the way in."""
    low, high = split.inputs.amin(), split.inputs.amax()
    inputs = (split.inputs - low) / (high - low)
    return Split(inputs, split.labels, split.groups, mean=torch.tensor([0.5]), std=torch.tensor([0.25]))


def test_a_run_in_a_fleet_sees_what_it_sees_alone() -> None:
    model, raw = precisely()
    split = in_colour(raw)
    data = data_for(model, split, test=split)
    told = recipe(
        epochs=2,
        pruning_epochs=1,
        scheduler=None,
        augment=Both(Flip(), Colour(0.4, 0.4, 0.4, (0.5,), (0.25,))),
    )
    runs = [Run(method=methods.nft(), sparsity=0.5, seed=seed) for seed in (0, 1, 2)]
    together = fit(model, data, runs=runs, recipe=told)
    for one, run in zip(together, runs, strict=True):
        (alone,) = fit(model, data, runs=[run], recipe=told)
        for name, tensor in alone.model.state_dict().items():
            torch.testing.assert_close(one.model.state_dict()[name], tensor, rtol=0, atol=1e-9)
    again = fit(model, data, runs=runs, recipe=told)
    for first, second in zip(together, again, strict=True):
        for name, tensor in first.model.state_dict().items():
            assert torch.equal(second.model.state_dict()[name], tensor)


def test_the_draws_depend_on_the_seed_and_the_epoch_alone() -> None:
    assert torch.equal(augment_draws(3, 7, samples=9, draws=3), augment_draws(3, 7, samples=9, draws=3))
    assert not torch.equal(augment_draws(3, 7, samples=9, draws=3), augment_draws(4, 7, samples=9, draws=3))
    assert not torch.equal(augment_draws(3, 7, samples=9, draws=3), augment_draws(3, 8, samples=9, draws=3))

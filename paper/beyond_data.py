"""The data sets of the study on unseen data: images, networks, and what is usual for each."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from torch import nn

from evenprune.augment import Both, Crop, Flip
from evenprune.data import cifar100
from evenprune.models import cifar_resnet56
from evenprune.paper_printed import FACES, FACES_SPARSITY
from evenprune.recipe import Augment, Recipe, Split
from evenprune.tally import InputProblems
from paper import beyond_cells, beyond_splits, runner, utkface
from paper import cifar100 as tables
from paper.cells import ceag_settings, el_dual_lr

LATE = ("train", "audit")  # evaluated after the last epoch only
RUNS: dict[str, Any] = {"only_at_end": LATE, "importance_batches": 50}  # where a recipe is not the paper's
AROUND, EL_AROUND = (0.25, 1.0, 5.0), (1.0, 10.0)  # dual steps to choose from, by the paper's


@dataclass(frozen=True)
class Images:
    """All images of a data set, as published."""

    train: Split
    test: Split
    names: tuple[str, ...]  # of the groups
    facts: Mapping[str, Any] = field(default_factory=dict)  # for every row: {"image_size": 128}

    def splits(self, *, heldout: float, used: float | None = None) -> dict[str, Split]:
        return beyond_splits.three_splits(self.train, self.test, per_class=heldout, used=used)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set of the study."""

    groups: tuple[str, ...]  # to choose from, the usual one first; the last is that of the classes
    read: Callable[[argparse.Namespace, str], Images]  # by flags and groups
    network: Callable[[], nn.Module]  # untrained
    recipe: Recipe  # of the runs, without augmentation
    augment: Augment
    dense_recipe: Callable[..., Recipe]  # of epochs, lr, batch
    dense: Mapping[str, Any]  # these three, as usual
    dense_as: str  # where that recipe is from
    weights: str  # how their file begins
    half: bool  # weights are stored in half precision if the accuracies stay
    heldout: float  # of each class: a number, or a share below 1
    sparsity: float
    tolerance: Callable[[float], float]  # by sparsity, as the dual steps are
    steps: Callable[[float], Sequence[float]]
    el_steps: Callable[[float], Sequence[float]]
    refresh: int  # steps from one pass over the held-out samples to the next: four passes an epoch
    fleet: int  # runs at once
    image_size: int | None = None  # None: there is one only


# --- CIFAR-100 ---


def read_cifar100(flags: argparse.Namespace, groups: str) -> Images:
    word = cast(Literal["class", "superclass"], groups)
    data = cifar100.load(flags.data, groups=word)
    train, test = (cifar100.split(images, word) for images in (data.train, data.test))
    return Images(train, test, data.groups)


# --- UTKFace: race predicted, groups by race ---


def read_faces(flags: argparse.Namespace, groups: str) -> Images:
    faces = utkface.faces_of(replace(FACES, group=groups), flags)
    facts = {"image_size": flags.image_size}
    return Images(faces.split("train"), faces.split("test"), faces.groups, facts)


def face_settings(sparsity: float) -> tuple[float, float]:
    """The paper's tolerance and dual step of race/race."""
    try:
        return ceag_settings(FACES, sparsity)
    except InputProblems as error:
        told = [f"{problem}; give --tolerance and --dual-lr" for problem in error.problems]
        raise InputProblems(told) from None


def face_steps(sparsity: float) -> list[float]:
    return around(face_settings(sparsity)[1], AROUND)


def face_el_steps(sparsity: float) -> list[float]:
    return around(el_dual_lr(FACES, sparsity), EL_AROUND)


def around(step: float, factors: Sequence[float]) -> list[float]:
    """As people would write them: a cell is told by its dual step."""
    return [float(f"{step * factor:.6g}") for factor in factors]


SOURCES = {
    "cifar100": Source(
        groups=("superclass", "class"),
        read=read_cifar100,
        network=cifar_resnet56,
        recipe=replace(runner.RECIPE, **RUNS),
        augment=Both(Crop(4), Flip()),
        dense_recipe=tables.dense_recipe,
        dense={"epochs": 200, "lr": 0.1, "batch": 256},
        dense_as="paper/cifar100.py dense",
        weights="cifar100",
        half=False,
        heldout=50,
        sparsity=0.95,
        tolerance=lambda sparsity: beyond_cells.TOLERANCE,
        steps=lambda sparsity: beyond_cells.STEPS,
        el_steps=lambda sparsity: beyond_cells.EL_STEPS,
        refresh=beyond_cells.REFRESH,
        fleet=45,
    ),
    "utkface": Source(
        groups=("race",),
        read=read_faces,
        network=lambda: utkface.network(FACES),
        recipe=replace(utkface.RECIPE, augment=None, **RUNS),
        augment=Flip(),
        dense_recipe=utkface.dense_recipe,
        dense={"epochs": 50, "lr": 0.01, "batch": 128},
        dense_as="paper/utkface.py dense",
        weights="utkface_race",
        half=True,
        heldout=0.2,
        sparsity=FACES_SPARSITY,
        tolerance=lambda sparsity: face_settings(sparsity)[0],
        steps=face_steps,
        el_steps=face_el_steps,
        refresh=30,
        fleet=10,
        image_size=utkface.IMAGE_SIZE,
    ),
}

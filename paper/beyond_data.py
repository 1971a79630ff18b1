"""The data sets of the study on unseen data: images, networks, and what is usual for each."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from evenprune.augment import Both, Crop, Flip
from evenprune.data import cifar100
from evenprune.models import cifar_resnet56, small_cnn
from evenprune.paper_printed import FACES
from evenprune.recipe import Augment, Recipe, Split
from paper import beyond_cells, beyond_splits, runner, utkface
from paper import cifar100 as tables
from paper.beyond_cells import AGES, SMALL, SPARSITY, TASKS
from paper.beyond_views import Grouping
from paper.cells import el_dual_lr
from paper.utkface import GENDER

LATE = ("train", "audit")  # evaluated after the last epoch only
RUNS: dict[str, Any] = {"only_at_end": LATE}  # where a recipe is not the paper's
# Dual steps to choose from, by the paper's; of EL + RB fewer classes bear larger ones.
AROUND, EL_AROUND = (0.25, 1.0, 5.0), {"race": (1.0, 3.0, 10.0), "class": (0.3, 1.0, 3.0)}


@dataclass(frozen=True)
class Groups:
    """One way to put all images of a data set into groups."""

    names: tuple[str, ...]
    train: Tensor  # [N] group ids
    test: Tensor


@dataclass(frozen=True)
class Images:
    """All images of a data set, as published."""

    train: Split
    test: Split
    groups: Mapping[str, Groups]  # by what they are called
    facts: Mapping[str, Any] = field(default_factory=dict)  # for every row: {"image_size": 128}

    def cut(self, *, heldout: float) -> tuple[dict[str, Split], dict[str, Grouping]]:
        """The splits, grouped as `train` and `test` are; and all ways to group their samples."""
        places = beyond_splits.places(self.train, self.test, per_class=heldout)
        there = {name: self.test if name == "audit" else self.train for name in places}
        splits = {name: beyond_splits.take(there[name], own) for name, own in places.items()}
        index = {name: torch.from_numpy(own) for name, own in places.items()}
        groupings = {
            word: Grouping(
                own.names,
                {name: (own.test if name == "audit" else own.train)[at] for name, at in index.items()},
            )
            for word, own in self.groups.items()
        }
        return splits, groupings


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set of the study."""

    read: Callable[[argparse.Namespace], Images]
    folder: str  # what its images are called where data sets lie
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
    dro_steps: Sequence[float]
    classes_of: Mapping[str, int]  # groups -> classes of each
    # Groups -> numbers of held-out samples a group, below all of them, that class biases are fitted to.
    sizes: Mapping[str, Sequence[float]]
    importance_batches: Mapping[str, int]  # groups -> batches of FairGRAPE's scores
    refresh: int  # steps from one pass over the held-out samples to the next: four passes an epoch
    fleet: int  # runs at once
    image_size: int | None = None  # None: there is one only


# --- CIFAR-100 ---


def read_cifar100(flags: argparse.Namespace) -> Images:
    data = cifar100.load(flags.data)
    words: tuple[Literal["superclass", "class"], ...] = ("superclass", "class")
    splits = {word: [cifar100.split(part, word) for part in (data.train, data.test)] for word in words}
    groups: dict[str, Groups] = {
        word: Groups(cifar100.GROUPS[word], train.groups, test.groups)
        for word, (train, test) in splits.items()
    }
    train, test = splits["superclass"]
    return Images(train, test, groups)


# --- UTKFace: race predicted, groups by race ---


def read_faces(flags: argparse.Namespace) -> Images:
    faces = utkface.faces_of(FACES, flags)
    train, test = faces.split("train"), faces.split("test")
    groups = {FACES.group: Groups(faces.groups, train.groups, test.groups)}
    return Images(train, test, groups, {"image_size": flags.image_size})


# --- the same faces, so small that two CPU cores are enough: gender predicted, groups by age ---


def read_small_faces(flags: argparse.Namespace) -> Images:
    faces = utkface.faces_of(GENDER, flags)
    train, test = faces.split("train"), faces.split("test")
    groups = Groups(tuple(AGES), *(ranges_of(faces[name][2]["age"]) for name in ("train", "test")))
    train, test = replace(train, groups=groups.train), replace(test, groups=groups.test)
    return Images(train, test, {"age": groups}, {"image_size": flags.image_size})


def ranges_of(ages: Any) -> Tensor:
    """Group ids, by where the ranges begin."""
    return torch.from_numpy(np.searchsorted([*AGES.values()], np.asarray(ages, int), side="right") - 1)


def small_network() -> nn.Module:
    return small_cnn((16, 32, 64), num_classes=2, in_channels=3)


def small_dense_recipe(*, epochs: int, lr: float, batch: int) -> Recipe:
    return replace(
        utkface.dense_recipe(epochs=epochs, lr=lr, batch=batch), channels_last=True, weight_decay=5e-4
    )


# --- dual steps to choose from: around the paper's where it has such groups ---


def steps_of(groups: str, sparsity: float) -> Sequence[float]:
    if groups not in TASKS:
        return beyond_cells.STEPS
    return around(beyond_cells.paper_settings(groups, sparsity)[1], AROUND)


def el_steps_of(groups: str, sparsity: float) -> Sequence[float]:
    if groups not in TASKS:
        return beyond_cells.EL_STEPS
    return around(el_dual_lr(TASKS[groups], sparsity), EL_AROUND[groups])


def around(step: float, factors: Sequence[float]) -> list[float]:
    """As people would write them: a cell is told by its dual step."""
    return [float(f"{step * factor:.6g}") for factor in factors]


SOURCES = {
    "cifar100": Source(
        read=read_cifar100,
        folder="cifar100",
        network=cifar_resnet56,
        recipe=replace(runner.RECIPE, **RUNS),
        augment=Both(Crop(4), Flip()),
        dense_recipe=tables.dense_recipe,
        dense={"epochs": 200, "lr": 0.1, "batch": 256},
        dense_as="paper/cifar100.py dense",
        weights="cifar100",
        half=False,
        heldout=50,
        sparsity=SPARSITY["cifar100"],
        dro_steps=beyond_cells.DRO_STEPS,
        classes_of={"superclass": 5, "class": 1},
        sizes={"superclass": (25, 100), "class": (10, 25)},
        # A pass for each group of a batch, at each of 14 prunings: 20 of 20 superclasses, 72 of 100 classes.
        importance_batches={"superclass": 50, "class": 10},
        refresh=beyond_cells.REFRESH,
        fleet=45,
    ),
    "utkface": Source(
        read=read_faces,
        folder="utkface",
        network=lambda: utkface.network(FACES),
        recipe=replace(utkface.RECIPE, augment=None, **RUNS),
        augment=Flip(),
        dense_recipe=utkface.dense_recipe,
        dense={"epochs": 50, "lr": 0.01, "batch": 128},
        dense_as="paper/utkface.py dense",
        weights="utkface_race",
        half=True,
        heldout=0.2,
        sparsity=SPARSITY["utkface"],
        dro_steps=beyond_cells.DRO_STEPS,
        classes_of={"race": 1},
        sizes={"race": (0.1, 0.3)},
        importance_batches={"race": 50},
        refresh=30,
        fleet=10,
        image_size=utkface.IMAGE_SIZE,
    ),
    SMALL: Source(
        read=read_small_faces,
        folder="utkface",
        network=small_network,
        recipe=replace(runner.RECIPE, channels_last=True, **RUNS),  # faster on a CPU, too
        augment=Flip(),
        dense_recipe=small_dense_recipe,
        dense={"epochs": 30, "lr": 0.05, "batch": 128},
        dense_as="paper/beyond.py dense",
        weights="small_faces",
        half=False,
        heldout=0.2,
        sparsity=SPARSITY[SMALL],
        dro_steps=beyond_cells.DRO_STEPS,
        classes_of={"age": 1},
        sizes={},
        importance_batches={"age": 50},
        refresh=25,
        fleet=1,  # one after another: a CPU gains nothing by fleets
        image_size=24,
    ),
}

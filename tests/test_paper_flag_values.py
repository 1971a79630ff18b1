"""Values that no flag takes: told at once, by every command of every script, before anything is read."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paper import beyond, beyond_simulation, cifar100, dense_model, flag_values, utkface
from paper.beyond_data import SOURCES

ONE = "give a whole number of at least 1"
SHARE = "give a share of at least 0 and below 1, as 0.95"
WRONG = [
    (cifar100, "table --fleet 0", f"--fleet is 0: {ONE}"),
    (cifar100, "buffers --k 20 --save-every 0", f"--save-every is 0: {ONE}"),
    (cifar100, "table --sparsity 0.9 95", f"--sparsity is 95: {SHARE}"),
    (cifar100, "timing --epochs 0", f"--epochs is 0: {ONE}"),
    (cifar100, "dense --lr 0", "--lr is 0: give a number above 0"),
    (cifar100, "dense --batch -1", f"--batch is -1: {ONE}"),
    (utkface, "table --fleet -3", f"--fleet is -3: {ONE}"),
    (utkface, "required --image-size 0", f"--image-size is 0: {ONE}"),
    (utkface, "variant float32 --epochs 0", f"--epochs is 0: {ONE}"),
]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    def call(script: Any, line: str) -> str:
        def read(*args: Any, **more: Any) -> Any:
            raise AssertionError("something was read")

        monkeypatch.setattr(dense_model, "load_weights", read)
        for name in ("splits_in", "load"):
            monkeypatch.setattr(script, name, read, raising=False)
        places = ["--results", str(tmp_path / "results.json"), "--work", str(tmp_path / "work")]
        assert script.main([*line.split(), *places]) == 2
        assert not list(tmp_path.iterdir())
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.strip()

    return call


@pytest.mark.parametrize(("script", "line", "told"), WRONG)
def test_a_wrong_value_is_named_with_what_would_be_right(
    script: Any, line: str, told: str, refused: Callable[..., str]
) -> None:
    assert refused(script, line) == told


def test_all_wrong_values_are_told_in_one_message(refused: Callable[..., str]) -> None:
    said = refused(cifar100, "variant detached --fleet 0 --save-every 0 --epochs 0 --sparsity 2").splitlines()
    assert said[0] == "4 problems:"
    assert {line.split()[1] for line in said[1:]} == {"--fleet", "--save-every", "--epochs", "--sparsity"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("line", ["table --device cuda", "dense --device cuda:1"])
def test_a_gpu_that_is_not_there_is_told_before_anything_is_read(
    line: str, refused: Callable[..., str]
) -> None:
    device = line.split()[-1]
    assert refused(cifar100, line) == (
        f"--device is {device}, and torch finds no GPU here: leave it out, or give cpu"
    )


def commands() -> list[argparse.Namespace]:
    """Every command of every script, as it is with nothing more said."""
    told = [(beyond.parser(dataset), beyond.COMMANDS, "") for dataset in SOURCES]
    told += [(script.parser(), script.COMMANDS, "float32") for script in (cifar100, utkface)]
    told += [(beyond_simulation.parser(), beyond_simulation.COMMANDS, "")]
    return [
        whole.parse_args([name, recipe] if name == "variant" else [name])
        for whole, known, recipe in told
        for name in known
    ]


def test_every_number_of_every_command_has_a_rule_and_is_accepted_as_it_is() -> None:
    """A new flag must not go without one."""
    for flags in commands():
        values = vars(flags) | {name: value[0] for name, value in vars(flags).items() if _several(value)}
        numbers = {name for name, value in values.items() if type(value) in (int, float)}
        assert numbers - {"seeds"} <= set(flag_values.FLAGS)
        assert flag_values.wrong_values(flags) == []


def _several(value: Any) -> bool:
    return isinstance(value, list) and bool(value)

"""Weights of files: safetensors and what torch.save wrote, and what is said of everything else."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from evenprune import model_file, state_file
from evenprune.tally import InputProblems


def small(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth", "W.PT", "pytorch_model.bin", "last.ckpt"])
def test_weights_of_either_form_are_loaded(tmp_path: Path, name: str) -> None:
    dense, empty, path = small(), small(seed=1), tmp_path / name
    if name.endswith("safetensors"):
        save_file(dense.state_dict(), path)
    else:
        torch.save(dense.state_dict(), path)
    model_file.load_weights(empty, str(path))
    assert all(torch.equal(empty.state_dict()[key], value) for key, value in dense.state_dict().items())


def refused(path: Path, *said: str) -> None:
    with pytest.raises(InputProblems) as caught:
        model_file.load_weights(small(), str(path))
    (problem,) = caught.value.problems
    assert problem.startswith(f"weights '{path}'")
    for part in said:
        assert part in problem


def test_other_files_say_what_to_do(tmp_path: Path) -> None:
    save = "save the state dict alone: torch.save(model.state_dict(), 'weights.pt')"
    torch.save(small(), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "holds Python objects, which are never loaded", save)
    torch.save({"epoch": 3, "model": small().state_dict()}, tmp_path / "more.pt")
    refused(tmp_path / "more.pt", "holds dict with 'epoch', 'model', not tensors by name", save)
    torch.save(small().state_dict(), tmp_path / "w.safetensors")
    refused(
        tmp_path / "w.safetensors", "cannot be read as safetensors", "torch.save wrote end in .pt or .pth"
    )
    refused(tmp_path / "none.pt", "cannot be read as a checkpoint of torch.save: No such file or directory")
    refused(tmp_path / "none.safetensors", "cannot be read as safetensors: No such file or directory")
    (tmp_path / "empty.pt").write_bytes(b"")
    refused(tmp_path / "empty.pt", "cannot be read as a checkpoint of torch.save")
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "other.pt")
    refused(tmp_path / "other.pt", "do not fit the model", "Missing key")
    torch.save({1: torch.zeros(2)}, tmp_path / "numbers.pt")
    refused(tmp_path / "numbers.pt", "holds dict with 1, not tensors by name", save)


def damaged(whole: bytes, count: int) -> Iterator[bytes]:
    """Some cut, all with a few bytes changed, mostly at the beginning, where files tell what follows."""
    chance = random.Random(0)
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            most = min(len(content), 400) if chance.random() < 0.7 else len(content)
            content[chance.randrange(most)] = chance.randrange(256)
        yield bytes(content[: chance.randrange(len(content))] if chance.random() < 0.3 else content)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_was_cut_or_damaged_is_one_sentence_and_a_next_step(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "w.pth"
    torch.save(small().state_dict(), path, _use_new_zipfile_serialization=zipped)
    kinds = set()
    for content in damaged(path.read_bytes(), 400):
        path.write_bytes(content)
        try:
            state_file.read(path)  # where only a weight was changed, nobody can tell
        except InputProblems as error:
            (problem,) = error.problems
            assert "\n" not in problem
            assert "torch.save(model.state_dict(), 'weights.pt')" in problem
            kinds.add("is it cut or damaged? Copy it here again" in problem)
    assert any(kinds)

"""Weights of files: safetensors and what torch.save wrote, and what is said of everything else."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from evenprune import model_file
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

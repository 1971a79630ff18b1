"""Kernels in a process of their own: importing Triton chooses between its interpreter and its compiler."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")


def printed_by(module: str, **settings: str) -> list[str]:
    """The lines that `python -m tests.MODULE` prints, with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"tests.{module}"],
        env={**os.environ, "PYTHONPATH": "src", **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def interpreted(module: str) -> list[str]:
    return printed_by(module, TRITON_INTERPRET="1")

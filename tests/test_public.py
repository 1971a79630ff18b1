"""What the package promises: its names, its version, and that the audit needs no torch."""

import subprocess
import sys
from importlib import metadata

import pytest

import evenprune


def test_every_public_name_is_there():
    for name in evenprune.__all__:
        assert getattr(evenprune, name) is not None


def test_version_is_the_package_version():
    assert evenprune.__version__ == metadata.version("evenprune")


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = evenprune.nonsense


def test_the_audit_imports_neither_torch_nor_polars():
    code = (
        "import sys, evenprune; evenprune.audit(dense_correct=[1, 0] * 20, pruned_correct=[1, 0] * 20,"
        "groups=[1, 2] * 20, tolerance=0.5);"
        "print([m for m in ('torch', 'polars', 'pandas', 'sklearn', 'typer', 'altair') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_needs_torch_says_how_to_get_it():
    code = "import sys; sys.modules['torch'] = None; import evenprune; evenprune.prune"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'evenprune[torch]'" in done.stderr

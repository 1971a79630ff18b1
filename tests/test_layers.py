"""The shape of the package: imports point downward, and each kind of effect has one home."""

import ast
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "evenprune"

# A module imports from lower layers, or from modules to its left on its own line.
LAYERS = [
    "tally atomic wording download reading",
    "ranges groups group_rules limits maximum bootstrap evidence correctness verdict further_columns "
    "paired intake audit",  # the audit: numpy
    "embedding page pictures comparison_wording comparison_page comparison_text report",  # what people read
    "paper_fields paper_files paper_results paper_printed paper_cells paper_pairs paper_ablations "
    "paper_variants paper_runtimes paper_groups paper_comparison paper_wording paper_pair_wording "
    "paper_charts paper_page_tables paper_page_variants paper_page_pictures paper_page paper_text",
    "spelling formats columns table_ranges tables",  # files to tallies: polars
    "reference gap_limits estimate method plan dual_step sample_weights constraint gap_constraint prunable "
    "live_channels masks",  # the method: torch
    "methods",
    "replay folds recipe augment conv_kernels grouped_conv depthwise_kernels depthwise_conv "
    "pointwise_kernels pointwise_conv wide_layers norm_kernels fused_norm norm_fusion widening fleet "
    "checkpoint predict group_gradients importance fairgrape bias_search class_bias diagnostics trackers",
    "identity draws iterates divergence teacher companions heldout compiling per_run loop "
    "element_wise history resume shared_start lineup fitted job epochs training",
    "state_file models data",
    "splits samples experiment leaks selection training_notes biased_runs run_names run_figures result "
    "asked_for pruning built_in architectures model_file data_source",
    "audit_command prune_command data_command cache_command report_command cli __main__",
]
ORDER = {name: (layer, place) for layer, line in enumerate(LAYERS) for place, name in enumerate(line.split())}
NO_TORCH = {name for line in LAYERS[:5] for name in line.split()} | {"audit_command", "report_command", "cli"}
HEAVY = {
    "torch",
    "safetensors",
    "sklearn",
    "altair",
    "vl_convert",
    "mlflow",
    "wandb",
    "tensorboard",
    "numba",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """`models/mlp.py` counts as `models`: leaves may import each other freely."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> tuple[tuple[str, bool], ...]:
    return tuple(found_imports(tree_of(path)))


def found_imports(tree: ast.AST):
    """(top-level package or evenprune module, whether it is imported on import) of every import."""
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    guarded = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        at_once = id(node) not in inner and id(node) not in guarded
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, at_once
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            if base == "evenprune":
                for alias in node.names:
                    yield f"evenprune.{alias.name}", at_once
            else:
                yield base, at_once


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downward(path):
    own = module_of(path)
    if own == "__init__":
        return
    assert own in ORDER, f"{own} has no layer: add it to LAYERS"
    for name, _ in imports(path):
        assert not name.startswith("."), f"{path}: relative import {name}; write it out"
        if name.startswith("evenprune."):
            other = name.split(".")[1]
            if other in ORDER and other != own:
                late = (
                    own == "verdict" and other == "report"
                )  # Audit.save() and print(): presentation on demand
                assert late or ORDER[other] < ORDER[own], f"{own} imports {other}, which is not below it"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_where_they_are_needed(path):
    own = module_of(path)
    at_once = {name.split(".")[0] for name, now in imports(path) if now}
    optional = HEAVY - {"torch", "safetensors"}
    assert not at_once & optional, f"{own} imports {at_once & optional} on import"
    if own in NO_TORCH or own == "__init__":
        assert not at_once & HEAVY


def test_the_constraint_knows_neither_masks_nor_training_and_masks_know_no_groups():
    def used(module):
        found = imports(PACKAGE / f"{module}.py")
        return {name.split(".")[1] for name, _ in found if name.startswith("evenprune.")}

    steps = ("gap_limits", "dual_step", "sample_weights")
    for module in ("estimate", "method", "plan", *steps, "constraint", "gap_constraint"):
        assert not used(module) & {"masks", "prunable", "training", "loop", "fleet"}
    for module in ("masks", "prunable"):
        assert not used(module) & {"groups", "constraint", "reference", "methods"}


def calls(tree: ast.AST, *names: str):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            word = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if word in names:
                yield node


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_command_line_prints_and_only_atomic_writes(path):
    own, tree = module_of(path), tree_of(path)
    if own not in {"cli", "__main__", "trackers"}:
        assert not list(calls(tree, "print"))
        assert "sys.argv" not in path.read_text()
    if own != "atomic":
        for call in calls(tree, "open"):
            text = ast.dump(call)
            assert not any(f"value='{mode}'" in text for mode in ("w", "wb", "a", "ab", "w+", "x", "xb")), own
        assert not [
            c for c in calls(tree, "write_text", "write_bytes") if "atomic" not in ast.dump(c.func)
        ], own
    assert not [c for c in calls(tree, "eval", "exec") if isinstance(c.func, ast.Name)], own


def test_no_module_has_a_name_that_says_nothing():
    empty = {"utils", "common", "helpers", "base", "registry", "misc"}
    assert not empty & {path.stem for path in FILES}

"""All kernels through the real compiler: what only a GPU could run is at least known to build for one."""

from pathlib import Path

import pytest

from tests.kernel_process import needs_triton, printed_by

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@needs_triton
def test_every_kernel_compiles_for_an_h200_and_spills_no_register() -> None:
    printed = printed_by("compiled_kernels", TRITON_DEFAULT_FP_FUSION="1")
    spilled = {name: int(stack) for stack, name in (line.split(" ", 1) for line in printed)}
    kernels = {name.split(" ")[0] for name in spilled}
    assert kernels == {
        *("walk", "walk_back", "gather", "gather_back", "shrink", "grow", "shrink_back"),
        *("moments", "apply", "back_sums", "back_apply"),
    }
    assert not any(spilled.values()), spilled

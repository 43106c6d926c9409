"""Import of the engine in a new process: what it prints and what it does not import."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import megaptm.parallel
print(*sys.modules)
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_gather_into_tensor(torch.empty(2), torch.ones(2))
dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def program():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_renamed_collectives_do_not_warn(program):
    """Deprecation warnings of torch do not appear in logs of runs."""
    assert "deprecated" not in program.stderr


def test_engine_does_not_import_fsdp(program):
    """With it, each rank would start a second of CPU time later."""
    modules = {*program.stdout.split()}
    assert "megatron.core.distributed" in modules
    assert not modules & {"sympy", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.distributed.checkpoint"}

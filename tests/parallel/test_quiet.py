"""Deprecation warnings of torch do not appear in logs of runs."""

import subprocess
import sys

PROGRAM = """
import megaptm.parallel
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_gather_into_tensor(torch.empty(2), torch.ones(2))
dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2))
dist.destroy_process_group()
"""


def test_renamed_collectives_do_not_warn():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr

"""Process group of one process, for measurements without peers."""

from __future__ import annotations

import atexit
import os
import tempfile


def join_alone() -> None:
    """Join a process group of one until the process ends, and tune the process as a run does.

    The rendezvous is a file, because concurrent benchmarks could use the same port.
    """
    from megaptm.parallel.groups import join_process_group, leave_process_group, rank_device
    from megaptm.train import cpu_tuning

    rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
    join_process_group(rank=0, world=1, local_rank=0, init_method=f"file://{rendezvous}")
    atexit.register(leave_process_group)
    if rank_device().type == "cpu":
        cpu_tuning.tune_for_cpu()

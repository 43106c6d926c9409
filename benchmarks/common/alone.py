"""The process group of one process, for what is measured without peers."""

from __future__ import annotations

import os
import tempfile


def join_alone() -> None:
    """A rendezvous in a file: two benchmarks at once would want one port."""
    from megaptm.parallel.groups import join

    place = os.path.join(tempfile.mkdtemp(), "rendezvous")
    join(rank=0, world=1, local_rank=0, init_method=f"file://{place}")

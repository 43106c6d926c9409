"""Name of this machine: of the Slurm node, or of the host."""

from __future__ import annotations

import os
import socket


def node_name() -> str:
    """Return the name of this machine: that of the Slurm node in a Slurm job, which may differ from the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()

"""This machine: its name, that of the Slurm node or of the host, and its CPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
GROUP = Path("/proc/self/cgroup")


def node_name() -> str:
    """Return the name of this machine: that of the Slurm node in a Slurm job, which may differ from the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def available_cpus(cgroups: Path = CGROUPS, group: Path = GROUP) -> int:
    """Return the number of CPUs that this process may use: those of its affinity, at most the quota of its container.

    A process with more threads than its quota is stopped most of the time, and threads wait for stopped ones.
    """
    cpus = len(os.sched_getaffinity(0))
    with suppress(OSError):
        cpus = min([cpus, *map(int, _cpu_quotas(cgroups, group.read_text()))])
    return max(1, cpus)


def _cpu_quotas(cgroups: Path, groups: str) -> Iterator[float]:
    """Yield the quotas of the control groups of a process, in CPUs. `groups`: lines `NUMBER:CONTROLLERS:PATH`, without
    controllers in version 2."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        names: tuple[str, ...] = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
        top = cgroups / "cpu" if controllers else cgroups
        folder = top / path.lstrip("/")
        for each in (folder, *folder.parents):
            if each.is_relative_to(top):
                with suppress(OSError, ValueError):  # version 2 has `max` without a quota, version 1 has -1
                    quota, period = (int(word) for name in names for word in (each / name).read_text().split())
                    if quota > 0:
                        yield quota / period

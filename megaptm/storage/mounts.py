"""File systems of paths, from the kernel's table of mounts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

NETWORK_FILE_SYSTEMS = frozenset(
    (
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "wekafs",
        "panfs",
        "pvfs2",
        "afs",
        "cifs",
        "smb3",
        "gfs2",
        "ocfs2",
    )
)
"""Types of file systems whose files are the same on every machine that mounts the same source."""


@dataclass(frozen=True)
class Mount:
    """Mounted file system."""

    kind: str
    """Type of the mounted file system: ext4, nfs4, lustre and so on; `unknown` if the system does not report it."""
    source: str
    """Source of the mounted file system: a device, or server and export."""

    @property
    def is_shared(self) -> bool:
        """Whether the mounted file system is shared between machines."""
        return self.kind in NETWORK_FILE_SYSTEMS


def find_mount(path: Path) -> Mount:
    """Return the mounted file system with a device number. A bind mount or subvolume may have another device number
    than its own line in the table."""
    device, mounts = path.stat().st_dev, Path("/proc/self/mountinfo")
    device_number = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(mounts.read_text().splitlines() if mounts.exists() else []):
        words = line.split()
        if words[2] == device_number:
            start = words.index("-") + 1
            return Mount(words[start], words[start + 1])
    return Mount("unknown", "")

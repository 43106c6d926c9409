"""What a disk says of itself, and of what it would still take."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from megaptm.errors import FULL_DISK

IN_MEMORY = ("tmpfs", "ramfs")
KEEP_SIZE = 1


@dataclass(frozen=True)
class Disk:
    """The file system that holds a folder."""

    kind: str
    """ext4, nfs4, lustre ...; `unknown` where the system does not say."""
    free: int
    """Bytes that this user may still write."""
    free_files: int | None
    """Files; None where their number has no limit."""

    @property
    def in_memory(self) -> bool:
        return self.kind in IN_MEMORY

    @classmethod
    def of(cls, folder: Path) -> Disk:
        room = os.statvfs(folder)
        return cls(_kind(folder), room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None)


def _kind(folder: Path) -> str:
    """By the number of the device, which a bind mount or a subvolume need not have in common with its own line."""
    device, mounts = folder.stat().st_dev, Path("/proc/self/mountinfo")
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(mounts.read_text().splitlines() if mounts.exists() else []):
        words = line.split()
        if words[2] == wanted:
            return words[words.index("-") + 1]
    return "unknown"


def reserve(folder: Path, size: int, *, piece: int) -> str | None:
    """Ask the file system itself for `size` bytes in files of `piece`, and give them back; why it refuses.

    It knows of quotas, where the number of free bytes does not. One that cannot reserve is not asked, nor one in
    memory, where that would take the memory; and never for more than half of what is free, which others may need now.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and min(piece, size) > limit:
        return f"takes no file of more than {limit:,} bytes from you (ulimit -f)"
    disk = Disk.of(folder)
    if disk.in_memory or size > disk.free // 2:
        return None
    for number, start in enumerate(range(0, size, piece)):
        refused = _reserve_file(folder / f"reserved-{number}", min(piece, size - start))
        if refused in FULL_DISK:
            return f"gives you no more than {start:,} bytes ({os.strerror(refused)})"
        if refused:
            return None
    return None


def _reserve_file(path: Path, size: int) -> int:
    """The number of the error, 0 for none. Not `posix_fallocate`: it writes the bytes where none can be reserved."""
    if not sys.platform.startswith("linux"):
        return errno.EOPNOTSUPP
    with path.open("wb") as file:
        call = ctypes.CDLL(None, use_errno=True).fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        return ctypes.get_errno() if call(file.fileno(), KEEP_SIZE, 0, size) else 0

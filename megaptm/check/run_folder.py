"""Check of the run folder: whether checkpoints can be written there as a run does, and whether there is enough
space."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from megaptm.check.finding import Case, Finding
from megaptm.checkpoint.files import HashedWriter, human_bytes, sha256_of
from megaptm.config import Config, resolve
from megaptm.errors import FULL_DISK, UserError, why_no_room
from megaptm.plan.count import count
from megaptm.plan.optimizer import checkpoint_bytes
from megaptm.resilience.lock import RunLock, in_use
from megaptm.run.folder import no_folder
from megaptm.storage import sync, write_whole

EXPORT_BYTES = 4
"""Bytes per parameter of an exported model."""
TRIED_BYTES = 1 << 20
TOPIC = "folder"
IN_MEMORY = ("tmpfs", "ramfs")
KEEP_SIZE = 1


def run_folder(case: Case) -> Iterator[Finding]:
    """Write, sync, rename and lock there, then compare free space with the checkpoint policy. All files are removed."""
    run = Path(case.config.run)
    with _beside(run) as place:
        case.tell(f"writing to {place.parent}")
        with _told(run):
            _write_as_a_run_does(place)
        user = in_use(run, now=place.stat().st_mtime)
        disk = Disk.of(place)
        says = f"{run} can be written to, synced, renamed in and locked ({disk.kind})."
        yield Finding(TOPIC, "good", says, {"run": str(run)})
        if disk.in_memory:
            says = (
                f"{run} is in memory ({disk.kind}): what is saved there is gone with the machine; choose another run."
            )
            yield Finding(TOPIC, "warning", says)
        if user:
            yield Finding(TOPIC, "warning", f"{run} is in use by {user}: a job that starts before it ends is refused.")
        if not case.mistakes:
            yield _room(case.config, run, disk, place)


@contextmanager
def _beside(run: Path) -> Iterator[Path]:
    """Yield an empty temporary folder at the location of the run folder."""
    there = next(path for path in (run, *run.parents) if os.path.lexists(path))
    with _told(run):
        probe = tempfile.TemporaryDirectory(prefix=".megaptm-check-", dir=there, ignore_cleanup_errors=True)
    with probe as name:
        yield Path(name)


@contextmanager
def _told(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EDQUOT):
            raise UserError(f"{why_no_room(error, run)}; or choose another run=FOLDER.") from None
        if error.errno in FULL_DISK:
            raise UserError(
                f"no space left on the disk of run ({run}): free some there, or choose another run=FOLDER."
            ) from None
        if error.errno == errno.EROFS:
            raise UserError(f"run ({run}) is on a disk that is read-only: choose another run=FOLDER.") from None
        raise UserError(no_folder(run, error)) from None


def _write_as_a_run_does(run: Path) -> None:
    """Commit a checkpoint of one megabyte with the functions of the store."""
    with RunLock(run):
        writing, final = run / "checkpoints/step-0.writing", run / "checkpoints/step-0"
        writing.mkdir(parents=True)
        with HashedWriter(writing / "rank-0") as file:
            file.write(os.urandom(TRIED_BYTES))
            digest = file.finish()
        write_whole(writing / "manifest.json", b"{}")
        writing.rename(final)
        sync(final.parent)
        if sha256_of(final / "rank-0") != digest:
            raise UserError(
                f"run ({run.parent}) is on a disk that does not give back what was written: choose another."
            )


def _room(config: Config, run: Path, disk: Disk, place: Path) -> Finding:
    """Check the space for the retained checkpoints, the one being written, and one export."""
    parameters = count(resolve(config))
    size, ranks = checkpoint_bytes(config, parameters), config.layout.processes
    # If there is not more space, the oldest is removed before the next one is written, but never the last one.
    number = min(max(config.checkpoint.keep, 2), -(-config.train.steps // config.checkpoint.every))
    saved = sum(path.stat().st_size for path in run.glob("checkpoints/step-*/*"))
    needed, export = max(0, number * size - saved), EXPORT_BYTES * parameters
    numbers = {"needed_bytes": needed, "export_bytes": export, "free_bytes": disk.free}
    what = f"{number} checkpoints of {human_bytes(size)}" if number > 1 else f"a checkpoint of {human_bytes(size)}"
    what += f" (checkpoint.keep {config.checkpoint.keep}, the one being written among them)" if number > 1 else ""
    remedy = "free some there, lower checkpoint.keep, or choose another run=FOLDER."
    if needed > disk.free:
        problem: str | None = f"has {human_bytes(disk.free)} free"
    elif disk.free_files is not None and number * (ranks + 2) > disk.free_files:
        problem = f"has room for {disk.free_files:,} more files, not for {number * (ranks + 2):,}"
    else:
        problem = reserve(place, needed, piece=-(-size // ranks))
    if problem:
        return Finding(TOPIC, "fault", f"{run} needs room for {what}, but its disk {problem}: {remedy}", numbers)
    if needed + export > disk.free:
        says = f"{run} has room for {what}, but not for an export of {human_bytes(export)} besides: {remedy}"
        return Finding(TOPIC, "warning", says, numbers)
    return Finding(TOPIC, "good", f"{human_bytes(disk.free)} are free for {what}.", numbers)


@dataclass(frozen=True)
class Disk:
    """File system of a folder."""

    kind: str
    """ext4, nfs4, lustre and so on; `unknown` if the system does not report it."""
    free: int
    """Free bytes for this user."""
    free_files: int | None
    """Free files; None if their number is not limited."""

    @property
    def in_memory(self) -> bool:
        return self.kind in IN_MEMORY

    @classmethod
    def of(cls, folder: Path) -> Disk:
        room = os.statvfs(folder)
        return cls(_kind(folder), room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None)


def _kind(folder: Path) -> str:
    """Return the type by device number. A bind mount or subvolume may have another device number than its own line."""
    device, mounts = folder.stat().st_dev, Path("/proc/self/mountinfo")
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in reversed(mounts.read_text().splitlines() if mounts.exists() else []):
        words = line.split()
        if words[2] == wanted:
            return words[words.index("-") + 1]
    return "unknown"


def reserve(folder: Path, size: int, *, piece: int) -> str | None:
    """Allocate `size` bytes in files of `piece` bytes and free them; return why the file system refuses, or None.

    This detects quotas, which the number of free bytes does not show. File systems that cannot reserve space are
    skipped, and so are those in memory, where it would use the memory. Never more than half of the free space is
    reserved, because others may need it now.
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
    """Return the error number, 0 for none. `posix_fallocate` would write the bytes where space cannot be reserved."""
    if not sys.platform.startswith("linux"):
        return errno.EOPNOTSUPP
    with path.open("wb") as file:
        call = ctypes.CDLL(None, use_errno=True).fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        return ctypes.get_errno() if call(file.fileno(), KEEP_SIZE, 0, size) else 0

"""Check of the run folder: whether a run could write checkpoints there, and whether there is enough space."""

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

from megaptm.check.finding import CheckInput, Finding
from megaptm.checkpoint.files import HashedWriter, hash_file, human_bytes
from megaptm.config import Config, resolve_spec
from megaptm.errors import FULL_DISK, UserError, describe_full_disk
from megaptm.plan.count import count_parameters
from megaptm.plan.optimizer import checkpoint_bytes
from megaptm.resilience.lock import RunLock, find_live_holder
from megaptm.run.folder import describe_folder_error
from megaptm.storage import sync_to_disk, write_atomically
from megaptm.storage.mounts import find_mount

EXPORT_BYTES = 4
"""Bytes per parameter of an exported model."""
PROBE_BYTES = 1 << 20
TOPIC = "folder"
IN_MEMORY = ("tmpfs", "ramfs")
KEEP_SIZE = 1


def check_run_folder(case: CheckInput) -> Iterator[Finding]:
    """Check the run folder: write, sync, rename and lock there, then compare free space with the checkpoint policy. All
    files are removed."""
    run = Path(case.config.run)
    with _probe_folder(run) as probe:
        case.tell(f"writing to {probe.parent}")
        with _disk_errors_as_user_errors(run):
            _commit_test_checkpoint(probe)
        owner = find_live_holder(run, now=probe.stat().st_mtime)
        disk = Disk.of_folder(probe)
        message = f"files in {run} can be written, synced, renamed and locked ({disk.kind})."
        yield Finding(TOPIC, "ok", message, {"run": str(run)})
        if disk.in_memory:
            message = (
                f"{run} is in memory ({disk.kind}): checkpoints there are lost with the machine; choose another "
                "run=FOLDER."
            )
            yield Finding(TOPIC, "warning", message)
        if owner:
            yield Finding(
                TOPIC, "warning", f"{run} is in use by {owner}: a job that starts before it ends is rejected."
            )
        if not case.config_errors:
            yield _check_space(case.config, run, disk, probe)


@contextmanager
def _probe_folder(run: Path) -> Iterator[Path]:
    """Yield an empty temporary folder at the location of the run folder."""
    parent = next(path for path in (run, *run.parents) if os.path.lexists(path))
    with _disk_errors_as_user_errors(run):
        folder = tempfile.TemporaryDirectory(prefix=".megaptm-check-", dir=parent, ignore_cleanup_errors=True)
    with folder as name:
        yield Path(name)


@contextmanager
def _disk_errors_as_user_errors(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"{describe_full_disk(error, run)}, or choose another run=FOLDER.") from None
        if error.errno == errno.EROFS:
            raise UserError(f"run ({run}) is on a read-only disk: choose another run=FOLDER.") from None
        raise UserError(describe_folder_error(run, error)) from None


def _commit_test_checkpoint(run: Path) -> None:
    """Commit a checkpoint of one megabyte to a temporary run folder, with the functions that a run uses."""
    with RunLock(run):
        writing, final = run / "checkpoints/step-0.writing", run / "checkpoints/step-0"
        writing.mkdir(parents=True)
        with HashedWriter(writing / "rank-0") as file:
            file.write(os.urandom(PROBE_BYTES))
            digest = file.finish()
        write_atomically(writing / "manifest.json", b"{}")
        writing.rename(final)
        sync_to_disk(final.parent)
        if hash_file(final / "rank-0") != digest:
            raise UserError(
                f"run ({run.parent}) is on a disk that returns other bytes than were written: choose another "
                "run=FOLDER."
            )


def _check_space(config: Config, run: Path, disk: Disk, probe: Path) -> Finding:
    """Check the space of the run folder for the retained checkpoints, the one being written, and one export."""
    parameters = count_parameters(resolve_spec(config))
    size, ranks = checkpoint_bytes(config, parameters), config.layout.processes
    if config.hub.export_every is not None:  # a Hugging Face copy of each, at most
        size += EXPORT_BYTES * parameters
    # If there is not more space, the oldest is removed before the next one is written, but never the last one.
    keep, steps = config.checkpoint.keep, config.train.steps
    num_retained = (
        max(keep.last, 2)
        + keep.best.count * max(1, len(config.phases))
        + (0 if keep.every is None else steps // keep.every)
    )
    every = config.checkpoint.every
    num_checkpoints = min(num_retained, -(-steps // every) if isinstance(every, int) else steps)
    saved = sum(path.stat().st_size for path in run.glob("checkpoints/step-*/*"))
    needed, export = max(0, num_checkpoints * size - saved), EXPORT_BYTES * parameters
    details = {"needed_bytes": needed, "export_bytes": export, "free_bytes": disk.free}
    checkpoints = (
        f"{num_checkpoints} checkpoints of {human_bytes(size)}"
        if num_checkpoints > 1
        else f"a checkpoint of {human_bytes(size)}"
    )
    checkpoints += (
        f" (checkpoint.keep.last {keep.last}, including the one being written)" if num_checkpoints > 1 else ""
    )
    remedy = "free some space, lower checkpoint.keep, or choose another run=FOLDER."
    if needed > disk.free:
        problem: str | None = f"has {human_bytes(disk.free)} free"
    elif disk.free_files is not None and num_checkpoints * (ranks + 2) > disk.free_files:
        problem = f"has room for {disk.free_files:,} more files, not for {num_checkpoints * (ranks + 2):,}"
    else:
        problem = _reserve_space(probe, needed, piece=-(-size // ranks))
    if problem:
        return Finding(
            TOPIC, "fault", f"{run} needs space for {checkpoints}, but its disk {problem}: {remedy}", details
        )
    if needed + export > disk.free:
        message = f"{run} has space for {checkpoints}, but not also for an export of {human_bytes(export)}: {remedy}"
        return Finding(TOPIC, "warning", message, details)
    return Finding(TOPIC, "ok", f"{human_bytes(disk.free)} are free for {checkpoints}.", details)


@dataclass(frozen=True)
class Disk:
    """File system of the run folder."""

    kind: str
    """Type of the file system: ext4, nfs4, lustre and so on; `unknown` if the system does not report it."""
    free: int
    """Free bytes of the file system for this user."""
    free_files: int | None
    """Number of files that can still be created; None if it is not limited."""

    @property
    def in_memory(self) -> bool:
        return self.kind in IN_MEMORY

    @classmethod
    def of_folder(cls, folder: Path) -> Disk:
        room = os.statvfs(folder)
        return cls(find_mount(folder).kind, room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None)


def _reserve_space(folder: Path, size: int, *, piece: int) -> str | None:
    """Allocate `size` bytes of disk space in files of `piece` bytes and free them; return why the file system refuses,
    or None.

    This detects quotas, which the number of free bytes does not show. File systems that cannot reserve space are
    skipped. File systems in memory are skipped too, because the reserved space would use memory. At most half of the
    free space is reserved, because other programs may need space at the same time.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and min(piece, size) > limit:
        return f"accepts no file of more than {limit:,} bytes (ulimit -f)"
    disk = Disk.of_folder(folder)
    if disk.in_memory or size > disk.free // 2:
        return None
    for index, start in enumerate(range(0, size, piece)):
        error_number = _reserve_file(folder / f"reserved-{index}", min(piece, size - start))
        if error_number in FULL_DISK:
            return f"has only {start:,} bytes for you ({os.strerror(error_number)})"
        if error_number:
            return None
    return None


def _reserve_file(path: Path, size: int) -> int:
    """Reserve disk space for a file; return the error number, 0 for none. `posix_fallocate` would write the bytes where
    space cannot be reserved."""
    if not sys.platform.startswith("linux"):
        return errno.EOPNOTSUPP
    with path.open("wb") as file:
        call = ctypes.CDLL(None, use_errno=True).fallocate
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        return ctypes.get_errno() if call(file.fileno(), KEEP_SIZE, 0, size) else 0

"""Verdicts on shards that the processes of a run share: each shard is read for its hash by one of them.

Without them every data rank would read the complete corpus. A start of a run has a folder with a file per split of a
corpus, which has a byte for each shard, and with a claim for each shard that a process is reading. Processes begin with
different shards of a window, so that several are read at a time. A verdict only holds for the same file: node-local
copies of a corpus have their own. If the folder cannot be written, each process reads all its shards itself.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from megaptm.errors import UserError
from megaptm.storage.mounts import find_mount

UNKNOWN, UNDAMAGED, DAMAGED = range(3)
"""Values of a shard's byte in a file of verdicts."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 1.0
PATIENCE_SECONDS = 120.0
"""Maximum seconds to wait for other processes to check a shard; they may have been killed. A gigabyte takes a second or
two."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ShareOfChecks:
    """Part of the checks of a run's corpora that one of its processes does."""

    folder: Path
    """Folder of this start of the run for verdicts on shards."""
    rank: int
    ranks: int


class Verdicts:
    """Verdicts on the shards of one split of a corpus, at one location."""

    def __init__(self, folder: Path, manifest: Path, split: str) -> None:
        """`manifest`: file of the corpus that tells whether two processes see the same files."""
        status, mount = manifest.stat(), find_mount(manifest)
        self._device = status.st_dev
        where = mount.source if mount.is_shared else f"{BOOT.read_text() if BOOT.exists() else ''}{status.st_dev}"
        identity = f"{mount.kind} {where} {status.st_ino} {manifest} {split}"
        self._path = folder / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def check(self, shards: Mapping[int, Path], check: Callable[[int], object]) -> None:
        """Return when each shard has been checked, by `check` or by another process.

        `shards`: number of a shard -> its file. A damaged shard is checked by every process, so that all raise its
        error.
        """
        left = []
        for shard, file in shards.items():
            if self._holds_for(file):
                left.append(shard)
            else:
                check(shard)
        first = secrets.randbelow(len(left) or 1)
        left = left[first:] + left[:first]
        waited, pause = 0.0, MIN_PAUSE_SECONDS
        while left:
            verdicts, num_left = self._read_verdicts(left), len(left)
            left = [shard for shard in left if verdicts[shard] != UNDAMAGED]
            must_check = waited >= PATIENCE_SECONDS
            free = (shard for shard in left if must_check or verdicts[shard] == DAMAGED or self._claim_shard(shard))
            if (claimed := next(free, None)) is not None:
                self._check_claimed(claimed, check)
                left.remove(claimed)
            if len(left) < num_left:
                waited, pause = 0.0, MIN_PAUSE_SECONDS
            else:
                time.sleep(pause)
                waited, pause = waited + pause, min(2 * pause, MAX_PAUSE_SECONDS)

    def _holds_for(self, file: Path) -> bool:
        """Whether verdicts hold for a file: not for a link to another disk, which may be one of this machine."""
        with suppress(OSError):
            return file.stat().st_dev == self._device
        return False

    def _check_claimed(self, shard: int, check: Callable[[int], object]) -> None:
        try:
            if self._read_verdicts([shard])[shard] != UNDAMAGED:  # it may have been checked just before the claim
                check(shard)
                self._write_verdict(shard, UNDAMAGED)
        except UserError:
            self._write_verdict(shard, DAMAGED)
            raise
        finally:
            with suppress(OSError):
                self._claim_path(shard).unlink()

    def _read_verdicts(self, shards: Collection[int]) -> dict[int, int]:
        """Return the verdict of each shard. The file is opened, because network file systems otherwise return old
        data."""
        try:
            with self._path.open("rb", buffering=0) as file:
                return {shard: (os.pread(file.fileno(), 1, shard) or b"\0")[0] for shard in shards}
        except OSError:
            return dict.fromkeys(shards, UNKNOWN)

    def _write_verdict(self, shard: int, verdict: int) -> None:
        with suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                os.pwrite(descriptor, bytes([verdict]), shard)
            finally:
                os.close(descriptor)

    def _claim_shard(self, shard: int) -> bool:
        """Whether this process shall check a shard."""
        try:
            os.close(os.open(self._claim_path(shard), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            return False
        except OSError:  # without a place for claims each process checks all its shards
            return True
        return True

    def _claim_path(self, shard: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{shard}")

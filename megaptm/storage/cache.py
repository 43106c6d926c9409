"""Cache of remote files: limited in size, verified by hash, shared by the processes of a machine."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from megaptm.errors import UserError
from megaptm.storage.atomic_file import SUFFIX, AtomicFile
from megaptm.storage.files import download, file_size
from megaptm.storage.retry import RetryPolicy

MAX_DOWNLOADS = 3
"""Maximum number of downloads of a remote file whose hash is wrong."""
QUARANTINE = "quarantine"
MIRROR = re.compile(r".*-[0-9a-f]{16}")
"""Pattern of names of folders with copies of a corpus: its name, and the start of its id. The cache never removes files
from other folders, such as local corpora."""
ABANDONED_NS = 3600 * 10**9
"""Age after which an unfinished file counts as abandoned, relative to the newest file of the cache or to now, whichever
is earlier, because the clock of another machine may be ahead."""


def default_cache_folder() -> Path:
    """Return the default folder of the cache of remote files: `$XDG_CACHE_HOME/megaptm`, or `~/.cache/megaptm`.

    A user without a home folder, as in many containers, has a folder among the temporary files.
    """
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "megaptm"
    try:
        return Path.home() / ".cache" / "megaptm"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"megaptm-{os.getuid()}"


@dataclass(frozen=True)
class RemoteFileCache:
    """Cache of remote files: a local folder of copies, from which the least recently used are removed.

    A process that has an evicted file open can still read it. Its space is freed when it is closed.
    """

    folder: Path = field(default_factory=default_cache_folder)
    max_bytes: int = 64 << 30
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def fetch(self, url: str, path: Path, *, sha256: str, size: int | None = None) -> bool:
        """Ensure that `path`, inside the cache, is a copy of the remote file at `url`. Return whether it was
        fetched."""
        if self._mark_used(path):
            return False
        started = time.monotonic()
        with self._lock_file(path):
            if self._mark_used(path):  # another process was first
                return False
            # Waiting for the other process, which failed, counts towards the patience.
            remaining = max(0.0, self.retry.seconds - (time.monotonic() - started))
            retry = replace(self.retry, seconds=remaining)
            size = file_size(url, retry) if size is None else size
            self._make_room(url, size)
            self._download_verified(url, path, sha256, size, retry)
        return True

    def discard(self, *paths: Path) -> None:
        """Remove damaged copies from the cache."""
        for path in paths:
            path.unlink(missing_ok=True)

    def _download_verified(self, url: str, path: Path, sha256: str, size: int, retry: RetryPolicy) -> None:
        with AtomicFile(path) as part:
            for _ in range(MAX_DOWNLOADS):
                if download(url, part, size=size, retry=retry) == sha256:
                    return
            quarantined = self.folder / QUARANTINE / f"{path.parent.name}-{path.name}"
            quarantined.parent.mkdir(parents=True, exist_ok=True)
            part.replace(quarantined)
            raise UserError(
                f"{url} is damaged: after {MAX_DOWNLOADS} downloads its sha256 still differs from the manifest's "
                f"(last copy: {quarantined}). Upload the file again, or rebuild the corpus."
            )

    def _mark_used(self, path: Path) -> bool:
        """Mark a copy in the cache as used; return False if it does not exist."""
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def _make_room(self, url: str, size: int) -> None:
        if size > self.max_bytes:
            raise UserError(
                f"data.max_cache_bytes ({self.max_bytes:,}) is less than the {size:,} bytes of {url}: raise it, "
                "or build the corpus with smaller shards."
            )
        copies = sorted(self._list_copies())
        used = sum(size_of_copy for _, size_of_copy, _ in copies)
        for used_ns, size_of_copy, oldest in copies:
            if used + size <= self.max_bytes:
                return
            if oldest.name.endswith(SUFFIX) and used_ns > min(copies[-1][0], time.time_ns()) - ABANDONED_NS:
                continue  # another process downloads it; without the file, it would fail
            oldest.unlink(missing_ok=True)
            used -= size_of_copy
        if used + size > self.max_bytes:
            _report_full(self.folder, self.max_bytes, self.retry.report)

    def _list_copies(self) -> Iterator[tuple[int, int, Path]]:
        """Yield time of last use (ns), bytes and path of each copy in the cache, including unfinished ones."""
        for path in self.folder.glob("*/*"):
            is_own = path.parent.name == QUARANTINE or MIRROR.fullmatch(path.parent.name)
            if is_own and path.name.endswith((".tar", ".index.npy", SUFFIX)):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield status.st_mtime_ns, status.st_size, path

    @contextmanager
    def _lock_file(self, path: Path) -> Iterator[None]:
        """Lock a file of the cache, so that one thread of one process fetches it and the others wait."""
        locks = self.folder / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        # 256 locks for any number of files. Files that share a lock merely wait for each other.
        name = hashlib.sha256(str(path.relative_to(self.folder)).encode()).hexdigest()[:2]
        with (locks / name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@lru_cache
def _report_full(folder: Path, max_bytes: int, report: Callable[[str], None]) -> None:
    """Report once per process that unfinished files leave no room in a cache."""
    report(
        f"{folder} exceeds data.max_cache_bytes ({max_bytes:,}), because unfinished downloads (*{SUFFIX}) leave no "
        "room: remove those of jobs that ended, or they are removed after an hour."
    )

"""Lock of a run folder for one job. It is released when its holder dies; a token identifies the holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import Any

from megaptm.checkpoint.files import UnreadableError, read_small_file
from megaptm.errors import UserError
from megaptm.resilience.attempt import Attempt
from megaptm.storage import safe_open

FILE = "lock"
LAUNCH_FILE = "launch.lock"
"""File of the lock for the command that starts a run's processes. It is held from before the command's first write
until all processes have ended."""
BEAT_SECONDS = 5.0
# A holder on another host is considered dead after this many missed beats.
MISSED_BEATS = 4

_held: set[int] = set()


class RunLock:
    """Lock of a run folder, held from `acquire` to `release`, or until the process dies.

    The kernel's lock (flock) excludes processes of the same host and, if the file system shares locks, of all hosts.
    Some network file systems do not share them. So the holder also touches the file every few seconds. A job that gets
    the kernel's lock, but finds the name of a holder on another host, waits for such a heartbeat before it takes over.
    Clocks are not compared. The previous holder notices the takeover by `is_held`.

    A scheduler knows more than the kernel: when it restarts a job or starts the next of a chain, the previous one is
    over. Its processes may still run on an unreachable node and hold the lock. So a later attempt writes its name over
    an earlier one's without the lock, and gets the lock when those processes end. This requires close-to-open
    consistency (as in NFS): opening a file reads what was written and synced before.
    """

    def __init__(
        self, run: Path, *, attempt: Attempt | None = None, beat_seconds: float = BEAT_SECONDS, file: str = FILE
    ) -> None:
        self.run = Path(run)
        self.path = self.run / file
        self.token = secrets.token_hex(8)
        self._beat_seconds = beat_seconds
        self.attempt = attempt or Attempt.from_environment()
        self._file: int | None = None
        self._stop = threading.Event()
        self._beats: threading.Thread | None = None

    def acquire(self) -> RunLock:
        """Acquire the lock of a run, or raise `UserError` with its holder immediately."""
        self.run.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        _held.add(self._file)
        try:
            self._wait_for_other_host()
        except UserError:
            self._close_file()
            raise
        self._write_holder()
        self._stop = threading.Event()
        self._beats = threading.Thread(
            target=self._beat_until_released, args=(self._stop,), name="run-lock", daemon=True
        )
        self._beats.start()
        return self

    def release(self) -> None:
        """Release the lock of a run. Has no effect if it is not held."""
        if self._file is None:
            return
        self._stop.set()
        if self._beats is not None:
            self._beats.join()  # afterwards the file descriptor may belong to another file
        if self.is_held():
            # Without a name, the next holder need not wait for beats.
            self._write_content(json.dumps({"attempt": self.attempt.to_json()}).encode() if self.attempt else b"")
        self._close_file()

    def is_held(self) -> bool:
        """Whether this process still holds the run's lock, so that no other job has taken over the run. To be checked
        before any irreversible action."""
        return self._is_own(_read_holder(self.path))

    def require_held(self) -> None:
        """Raise `UserError` if another job has taken over the run's lock.

        Called at each step, so it does not wait for a failing file system: a lock that cannot be read is read again at
        the next step, and before a checkpoint is committed.
        """
        try:
            holder = _parse_holder(self.path.read_bytes())
        except FileNotFoundError:
            holder = {}
        except OSError:
            return
        if not self._is_own(holder):
            raise UserError(f"another job took over the run {self.run}, so this job ends.")

    def __enter__(self) -> RunLock:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _open(self) -> int:
        """Open the run's lock file, locked or taken over from a holder whose job has ended."""
        while True:
            file = safe_open(self.path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _read_holder(self.path)
                # Processes of an earlier attempt hold the lock, or this attempt already took over.
                is_own = self.attempt is not None and holder == {"attempt": self.attempt.to_json()}
                if is_own or self._follows_holder(holder):
                    return file
                os.close(file)
                raise UserError(self._in_use_message(holder)) from None
            except OSError as error:
                os.close(file)
                if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise UserError(
                        f"the file system of the run folder {self.run} has no file locks: choose run=FOLDER on another "
                        "one, or mount it with locks (Lustre: -o flock)."
                    ) from error
                raise
            # The file was removed between opening and locking; a lock on it would have no effect.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), self.path.stat()):
                    return file
            os.close(file)

    def _wait_for_other_host(self) -> None:
        """Wait for a heartbeat of the process on another host that holds the run's lock. Raise `UserError` if there is
        one; return if there is none, because the process has ended."""
        holder = _read_holder(self.path)
        if holder.get("host") in (None, socket.gethostname()) or self._follows_holder(holder):
            return
        last = _last_beat(self.path)
        deadline = time.monotonic() + MISSED_BEATS * self._beat_seconds
        while time.monotonic() < deadline:
            time.sleep(self._beat_seconds / 4)
            if _last_beat(self.path) != last:
                raise UserError(self._in_use_message(holder))

    def _is_own(self, holder: dict[str, Any]) -> bool:
        return self._file is not None and (holder.get("token") == self.token or self._follows_holder(holder))

    def _follows_holder(self, holder: dict[str, Any]) -> bool:
        return self.attempt is not None and self.attempt.follows(Attempt.from_json(holder.get("attempt")))

    def _in_use_message(self, holder: dict[str, Any]) -> str:
        name = _describe_holder(holder)
        return f"run folder {self.run} is in use by {name}: wait for it, stop it, or choose another run=FOLDER"

    def _beat_until_released(self, stop: threading.Event) -> None:
        while not stop.wait(self._beat_seconds):
            with contextlib.suppress(OSError, UnreadableError):
                if not self.is_held():
                    return
                if not is_held_by(self.run, self.token, self.path.name):
                    self._write_holder()  # an earlier attempt signed late, after it was lost
                os.utime(self.path)
                if (file := self._file) is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # succeeds once those of an earlier attempt end

    def _write_holder(self) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "token": self.token}
        attempt = {"attempt": self.attempt.to_json()} if self.attempt else {}
        self._write_content(json.dumps(holder | attempt).encode())

    def _write_content(self, content: bytes) -> None:
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)
        os.fsync(self._file)

    def _close_file(self) -> None:
        assert self._file is not None
        _held.discard(self._file)
        os.close(self._file)
        self._file = None


def is_held_by(run: Path, token: str, file: str = FILE) -> bool:
    """Whether the lock of a run contains this token."""
    return _read_holder(Path(run) / file).get("token") == token


def find_live_holder(run: Path, *, now: float) -> str | None:
    """Return the holder of the run's lock if its last heartbeat is recent, without touching the lock; otherwise None.

    `now` is the modification time of a file written just now on the same file system, so that clocks need not agree.
    """
    path = Path(run) / FILE
    holder = _read_holder(path)
    # A beat in the future predates a clock change and was not followed by another.
    if "token" not in holder or abs(now - path.stat().st_mtime) > MISSED_BEATS * BEAT_SECONDS:
        return None
    return _describe_holder(holder)


def _describe_holder(holder: dict[str, Any]) -> str:
    pid, host, since = (holder.get(name) for name in ("pid", "host", "since"))
    return f"process {pid} on {host} since {since}" if pid and host else "another process"


def _read_holder(path: Path) -> dict[str, Any]:
    """Return the holder named in a run's lock file; empty without a holder or during a write.

    Reads are retried for minutes if the file system fails, because such a failure does not mean that the run was taken
    over.
    """
    try:
        return _parse_holder(read_small_file(path))
    except UnreadableError:
        raise
    except (OSError, ValueError):  # no such file, or no regular one
        return {}


def _parse_holder(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _last_beat(path: Path) -> int:
    # Opened instead of only queried: network file systems answer `stat` from a cache for up to a minute.
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _close_in_child() -> None:
    """Close the run's lock in a forked child (a DataLoader worker), which must not hold it after its parent's death."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)

"""One live job to a run folder: a lock that dies with its holder, and a name by which a holder knows itself."""

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

from megaptm.checkpoint.files import UnreadableError, read_whole
from megaptm.errors import UserError
from megaptm.resilience.attempt import Attempt
from megaptm.storage import open_own

FILE = "lock"
STARTING = "launch.lock"
"""Of the command that starts a run's processes, from before it writes anything there until all have ended."""
BEAT_SECONDS = 5.0
# A holder on another host counts as dead after this many beats without one.
MISSED_BEATS = 4

_held: set[int] = set()


class RunLock:
    """Held from `acquire` to `release`, or until the process dies in whatever way.

    The kernel's lock (flock) decides among the processes of one host and, where the file system shares locks, of all.
    Some network file systems do not share them. So the holder also touches the file every few seconds; a job that gets
    the kernel's lock but finds the name of a holder on another host watches for that before it takes over. Clocks are
    not compared. The one taken over from learns it by `still_mine`.

    A scheduler knows more than the kernel: when it starts a job again, or the next of a chain, the one before is over,
    though its processes may live on, lock and all, on a node that was lost. So a later attempt writes its name over an
    earlier one's without the lock, and gets the lock when those processes end. Of the file system that asks one thing:
    who opens a file reads what was written and synced before (close-to-open, as NFS calls it).
    """

    def __init__(
        self, run: Path, *, attempt: Attempt | None = None, beat_seconds: float = BEAT_SECONDS, file: str = FILE
    ) -> None:
        self.run = Path(run)
        self.path = self.run / file
        self.token = secrets.token_hex(8)
        self._beat_seconds = beat_seconds
        self.attempt = attempt or Attempt.here()
        self._file: int | None = None
        self._stop = threading.Event()
        self._beats: threading.Thread | None = None

    def acquire(self) -> RunLock:
        """Take the lock, or say at once who has it."""
        self.run.mkdir(parents=True, exist_ok=True)
        self._file = self._open()
        _held.add(self._file)
        try:
            self._wait_for_other_host()
        except UserError:
            self._close()
            raise
        self._sign()
        self._stop = threading.Event()
        self._beats = threading.Thread(target=self._beat, args=(self._stop,), name="run-lock", daemon=True)
        self._beats.start()
        return self

    def release(self) -> None:
        """Give the run to whoever comes next. Harmless when it is not held."""
        if self._file is None:
            return
        self._stop.set()
        if self._beats is not None:
            self._beats.join()  # what it would sign or lock after the file is closed may be another one by its number
        if self.still_mine():
            # No holder: the next one, on whatever host, need not watch for a sign of life.
            self._write(json.dumps({"attempt": self.attempt.to_json()}).encode() if self.attempt else b"")
        self._close()

    def still_mine(self) -> bool:
        """Whether no other job has taken over the run since. Ask before anything that cannot be taken back."""
        return self._file is not None and (
            holds(self.run, self.token, self.path.name) or self._follows(_holder(self.path))
        )

    def must_be_mine(self) -> None:
        """Raise a `UserError` when it no longer is."""
        if not self.still_mine():
            raise UserError(f"another job took over the run {self.run}: this one must end.")

    def __enter__(self) -> RunLock:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _open(self) -> int:
        """The lock's file, locked, or at least taken from a holder that is over."""
        while True:
            file = open_own(self.path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(self.path)
                if self._may_take_from(holder):
                    return file
                os.close(file)
                raise UserError(self._in_use(holder)) from None
            except OSError as error:
                os.close(file)
                if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise UserError(
                        f"the file system of the run folder {self.run} has no file locks: choose run=FOLDER elsewhere, "
                        "or have it mounted with locks (Lustre: -o flock)"
                    ) from error
                raise
            # Removed by hand between opening and locking: a lock on a file without a name protects nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), self.path.stat()):
                    return file
            os.close(file)

    def _wait_for_other_host(self) -> None:
        """Return when the holder named in the file, if on another host, shows no sign of life; raise if it does."""
        holder = _holder(self.path)
        if holder.get("host") in (None, socket.gethostname()) or self._follows(holder):
            return
        last = _last_beat(self.path)
        deadline = time.monotonic() + MISSED_BEATS * self._beat_seconds
        while time.monotonic() < deadline:
            time.sleep(self._beat_seconds / 4)
            if _last_beat(self.path) != last:
                raise UserError(self._in_use(holder))

    def _follows(self, holder: dict[str, Any]) -> bool:
        return self.attempt is not None and self.attempt.follows(Attempt.from_json(holder.get("attempt")))

    def _may_take_from(self, holder: dict[str, Any]) -> bool:
        """Whether the kernel's lock is held by what an earlier attempt left; this one may have had the run before."""
        own = self.attempt is not None and holder == {"attempt": self.attempt.to_json()}
        return own or self._follows(holder)

    def _in_use(self, holder: dict[str, Any]) -> str:
        return f"run folder {self.run} is in use by {_who(holder)}: wait for it, stop it, or choose another run=FOLDER"

    def _beat(self, stop: threading.Event) -> None:
        while not stop.wait(self._beat_seconds):
            with contextlib.suppress(OSError, UnreadableError):
                if not self.still_mine():
                    return
                if not holds(self.run, self.token, self.path.name):
                    self._sign()  # an earlier attempt was about to sign when it was lost, and has done so now
                os.utime(self.path)
                if (file := self._file) is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free in the end, where it was taken from another

    def _sign(self) -> None:
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": _now(), "token": self.token}
        attempt = {"attempt": self.attempt.to_json()} if self.attempt else {}
        self._write(json.dumps(holder | attempt).encode())

    def _write(self, content: bytes) -> None:
        assert self._file is not None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, content, 0)
        os.fsync(self._file)

    def _close(self) -> None:
        assert self._file is not None
        _held.discard(self._file)
        os.close(self._file)
        self._file = None


def holds(run: Path, token: str, file: str = FILE) -> bool:
    """Whether the run's lock names this token."""
    return _holder(Path(run) / file).get("token") == token


def in_use(run: Path, *, now: float) -> str | None:
    """Who holds the run's lock and gave a sign of life of late, without touching it.

    `now` is the modification time of a file that was written just now on the same file system: clocks are not compared.
    """
    path = Path(run) / FILE
    holder = _holder(path)
    # A beat in the future was before the clock was set back, and none has followed it.
    if "token" not in holder or abs(now - path.stat().st_mtime) > MISSED_BEATS * BEAT_SECONDS:
        return None
    return _who(holder)


def _who(holder: dict[str, Any]) -> str:
    pid, host, since = (holder.get(name) for name in ("pid", "host", "since"))
    return f"process {pid} on {host} since {since}" if pid and host else "another process"


def _holder(path: Path) -> dict[str, Any]:
    """Who the lock file names; empty when nobody, or while a name is being written.

    A file system that fails is asked again, for minutes: that it fails does not mean that another job took the run.
    """
    try:
        found = json.loads(read_whole(path))
    except UnreadableError:
        raise
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_beat(path: Path) -> int:
    # Opened, not only asked by name: network file systems answer the latter from a cache for up to a minute.
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _let_go_in_child() -> None:
    """A forked child - a data loader's worker - must not hold the lock beyond its parent's death."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_child)

"""A bound on the processor time that one document takes, for libraries that may be stuck on it.

Whether a document takes too long depends on the machine, and a corpus must not depend on the machine. So this is the
last resort, behind limits that follow from the document alone (its bytes, its nesting), and its verdict is kept beside
the unfinished work: a build that goes on, and a worker that repeats a job, leave out the same documents at once.
Code that does not return to Python is not interrupted, but its document is left out when it does.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TookTooLong(Exception):  # noqa: N818  # a verdict on a document
    """A document took more processor time than one may."""


class _Ring(BaseException):
    """Raised where the time is over; no library takes it for a mistake of its own."""


class _Limit:
    """The limit of the job that this process does."""

    seconds: int | None = None
    folder = Path()
    known: frozenset[str] = frozenset()
    """Keys of what took too long before."""
    armed = False
    rang = False


@contextmanager
def limiting(seconds: int, folder: Path) -> Iterator[None]:
    """Bound what is done within a `time_limit`, and keep verdicts in a folder."""
    if threading.current_thread() is not threading.main_thread():  # the others receive no signals
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _ring)
    _Limit.seconds, _Limit.folder = seconds, folder
    _Limit.known = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
    try:
        yield
    finally:
        _Limit.seconds, _Limit.known = None, frozenset()
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def time_limit(what: str, *texts: str) -> Iterator[None]:
    """Raise `TookTooLong` if work on these texts takes longer than `limiting` says, or did so before."""
    if _Limit.seconds is None:
        yield
        return
    if _Limit.known and _key(what, texts) in _Limit.known:
        raise _too_long()
    try:
        _Limit.armed, _Limit.rang = True, False
        signal.setitimer(signal.ITIMER_VIRTUAL, _Limit.seconds)
        yield
    except _Ring:
        pass
    finally:
        _Limit.armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if _Limit.rang:
        key = _key(what, texts)
        _Limit.folder.mkdir(parents=True, exist_ok=True)
        (_Limit.folder / key).touch()
        _Limit.known |= {key}
        raise _too_long()


def _ring(*_: object) -> None:
    if _Limit.armed:
        _Limit.rang = True
        raise _Ring


def _too_long() -> TookTooLong:
    return TookTooLong(f"takes more than {_Limit.seconds} s of processor time")


def _key(what: str, texts: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(f"{_Limit.seconds} {what}".encode(), digest_size=16)
    for text in texts:
        digest.update(hashlib.blake2b(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()

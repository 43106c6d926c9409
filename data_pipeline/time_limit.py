"""Limit on the processor time of one document, for libraries that may not terminate on it.

Time depends on the machine, but a corpus must not. So this limit is a last resort after limits that depend only on the
document (its bytes, its nesting). Documents that exceed it are recorded with the unfinished work: a continued build,
and a worker that repeats a job, drop the same documents without retrying them.

Code that does not return to Python is not interrupted. Its document is dropped when it returns.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class TimeLimitError(Exception):  # a result about a document, not an error
    """Raised for a document that exceeded the limit on processor time."""


class _TimerSignal(BaseException):
    """Raised by the timer. A BaseException, so that libraries do not catch it as their own error."""


class _Limit:
    """Time limit that applies to the current job of this process."""

    seconds: float | None = None
    folder = Path()
    known: frozenset[str] = frozenset()
    """Keys of texts that exceeded the time limit before."""
    armed = False
    rang = False


@contextmanager
def apply_time_limit(seconds: float, folder: Path) -> Iterator[None]:
    """Apply a limit on processor time within each `time_limit`, and record exceeded ones in a folder."""
    if threading.current_thread() is not threading.main_thread():  # other threads receive no signals
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _on_timer)
    _Limit.seconds, _Limit.folder = seconds, folder
    _Limit.known = frozenset(os.listdir(folder)) if folder.is_dir() else frozenset()
    try:
        yield
    finally:
        _Limit.seconds, _Limit.known = None, frozenset()
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def time_limit(purpose: str, *texts: str) -> Iterator[None]:
    """Raise `TimeLimitError` if processing these texts exceeds the processor time of `apply_time_limit`, or did so
    before."""
    if _Limit.seconds is None:
        yield
        return
    if _Limit.known and _hash_of_texts(purpose, texts) in _Limit.known:
        raise _time_limit_error()
    try:
        _Limit.armed, _Limit.rang = True, False
        signal.setitimer(signal.ITIMER_VIRTUAL, _Limit.seconds)
        yield
    except _TimerSignal:
        pass
    finally:
        _Limit.armed = False
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if _Limit.rang:
        key = _hash_of_texts(purpose, texts)
        _Limit.folder.mkdir(parents=True, exist_ok=True)
        (_Limit.folder / key).touch()
        _Limit.known |= {key}
        raise _time_limit_error()


def _on_timer(*_: object) -> None:
    if _Limit.armed:
        _Limit.rang = True
        raise _TimerSignal


def _time_limit_error() -> TimeLimitError:
    return TimeLimitError(f"takes more than {_Limit.seconds} s of processor time")


def _hash_of_texts(purpose: str, texts: tuple[str, ...]) -> str:
    digest = hashlib.blake2b(f"{_Limit.seconds} {purpose}".encode(), digest_size=16)
    for text in texts:
        digest.update(hashlib.blake2b(text.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()

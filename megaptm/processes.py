"""Process behavior: end with the parent, survive a closed terminal, collect garbage rarely, exit at once."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from megaptm.errors import EXIT_FAILURE, printable

PR_SET_PDEATHSIG = 1


class DetachableStream(io.FileIO):
    """Output stream that discards output after its terminal, or the program that reads it, is gone."""

    def write(self, text: Any, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            return memoryview(text).nbytes


def survive_closed_terminal() -> None:
    """Keep a closed stdout or stderr from ending this process."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue  # replaced by other code
        stream.flush()
        raw = DetachableStream(stream.fileno(), "w", closefd=False)
        lasting = io.TextIOWrapper(
            raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw),  # type: ignore[arg-type]
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)


def replace_unencodable() -> None:
    """Print `?` for characters that the encoding of standard output or error lacks, as in a locale without UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


class _PrintableFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def escape_log_messages() -> None:
    """Escape control characters in the warnings that Python prints: they may quote the files of a received run."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_PrintableFormatter())


def collect_garbage_rarely() -> None:
    """Raise the thresholds of the garbage collector, for a program that imports torch.

    Collections during the import take a sixth of its time. Later, each rank would collect at a different moment while
    the other ranks wait.
    """
    gc.set_threshold(100_000, 50, 100)


def end_with_parent(parent: int) -> Callable[[], None]:
    """Return a function that makes the kernel kill the calling child, even if stopped, when process `parent` dies.

    The child calls it first. It is created before the fork: between fork and exec a child must not import or allocate
    much. The kernel takes the thread that forked as the parent: it must live as long as its process.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def begin() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(EXIT_FAILURE)

    return begin


def end_now(code: int, *, handlers: bool = True) -> NoReturn:
    """End this process at once: as Python does, but without deleting modules, which takes seconds with torch.

    With `handlers=False`, functions registered with `atexit` are skipped: after a failure they may wait for other
    ranks.
    """
    with contextlib.suppress(OSError):  # the disk of the log may be full
        if handlers:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

"""Processes that end at once, or with the one that started them, whatever ended that (on Linux), outlive who reads
what they print, look for garbage less often, or keep the memory that they have had."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from megaptm.errors import EXIT_FAILURE

PR_SET_PDEATHSIG = 1
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Of glibc's `mallopt`."""
MOST_BYTES = 2**31 - 1
"""It takes an int."""


class DetachableStream(io.FileIO):
    """A stream whose words are lost, and nothing else, once its terminal, or the program that reads it, has gone."""

    def write(self, text: Any, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            return memoryview(text).nbytes


def outlive_terminal() -> None:
    """What this process prints must not end it, when nobody is there any more to read it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue  # somebody has put their own in its place
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


def collect_garbage_rarely() -> None:
    """For a program that loads torch: Python would look through all that was imported again and again as it grows,
    which is a sixth of the time that the import takes, and later at a moment of its own in each rank, while the others
    wait for it."""
    gc.set_threshold(100_000, 50, 100)


def keep_freed_memory() -> None:
    """What is freed stays with this process, up to 2 GiB, where glibc allocates.

    It would be given back to Linux, which fills each page with zeros when it is asked for again: a quarter of a step of
    training on a CPU, whose large tensors are the same in every step.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None:
        # Before glibc 2.35 no more than 32 MiB are taken, and the other call alone would leave it at 128 KiB for good.
        if not mallopt(M_MMAP_THRESHOLD, MOST_BYTES):
            mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, MOST_BYTES)


def end_with_parent(parent: int) -> Callable[[], None]:
    """What a child of process `parent` calls first, to be killed by the kernel, also while it is stopped, when it dies.

    Made before the fork: between fork and exec a child may not import or allocate much. The kernel counts the thread
    that forked as the parent: start children from one that lives as long as its process.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def begin() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the promise was made
            os._exit(EXIT_FAILURE)

    return begin


def end_now(code: int, *, handlers: bool = True) -> NoReturn:
    """End this process as Python does, but for taking its modules apart: with torch that takes seconds of waiting.

    Without `handlers` what was registered with `atexit` is left out, too: after a failure it may wait for others.
    """
    with contextlib.suppress(OSError):  # the disk that the log is on may be full
        if handlers:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)

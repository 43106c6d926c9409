"""Copy of rank 0's output to the terminal and its log. A traceback is held back until its cause is known."""

from __future__ import annotations

import contextlib
import os
import threading
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

from megaptm.resilience.failures import TAIL_BYTES, TRACEBACK, USER_ERROR

# Longer than a process needs to exit after its traceback. If it lives on, the traceback is only a message.
HOLD_SECONDS = 5.0
ERROR_MARKS = (TRACEBACK.encode(), USER_ERROR.encode())


class LogTee(threading.Thread):
    """Copy of one output stream of rank 0 to the terminal and its log. Its error may only echo that of another rank,
    which the user must see first."""

    def __init__(self, source: IO[bytes], *, terminal: IO[bytes], log: Path) -> None:
        super().__init__(daemon=True, name=f"tee-{log.stem}")
        self._source, self._terminal, self._log = source, terminal, log
        self.held = b""
        """Output of the rank that is not printed yet. After the thread has ended, the launcher prints or drops it."""
        self.unlogged = b""
        """End of the rank's output that could not be written to the log."""

    def run(self) -> None:
        with self._source, self._log.open("ab", buffering=0) as log:
            while True:
                if self.held and not wait([self._source.fileno()], HOLD_SECONDS):
                    self.release()
                chunk = os.read(self._source.fileno(), 65536)
                if not chunk:
                    return
                self._write_to_log(log, chunk)
                self._copy_chunk(chunk)

    def _write_to_log(self, log: IO[bytes], chunk: bytes) -> None:
        written = 0
        with contextlib.suppress(OSError):  # a full disk must not block the process that writes
            written = log.write(chunk)
        self.unlogged = (self.unlogged + chunk[written:])[-TAIL_BYTES:]

    def release(self) -> None:
        """Print the output of the rank that was held back."""
        self._show_on_terminal(self.held)
        self.held = b""

    def _copy_chunk(self, chunk: bytes) -> None:
        if self.held:
            self.held += chunk
            return
        # Only at the start of a line: elsewhere the words are part of a message.
        starts = [at for mark in ERROR_MARKS if (at := (b"\n" + chunk).find(b"\n" + mark)) >= 0]
        cut = min(starts, default=len(chunk))
        self.held = chunk[cut:]
        self._show_on_terminal(chunk[:cut])

    def _show_on_terminal(self, text: bytes) -> None:
        try:
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):
            self._terminal = open(os.devnull, "wb")  # noqa: SIM115  # the terminal is gone; the log goes on

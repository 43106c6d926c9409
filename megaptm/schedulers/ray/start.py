"""`python -m megaptm.schedulers.ray.start OPTION...`: `ray start OPTION...`, repeated until Ray runs on this node.

Ray gives a node 30 seconds to start, which a node that is busy, or reads Ray's files for the first time, can miss.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

import psutil

from megaptm.errors import EXIT_USER_ERROR, UserError
from megaptm.python_path import module_command

VARIABLE = "MEGAPTM_RAY_START_SECONDS"
START_SECONDS = 600.0
PAUSE_SECONDS = 2.0
STARTED = b"Ray runtime started"
MARK = "MEGAPTM_RAY_START"
"""Variable by which the processes of one attempt are known."""


def start_seconds() -> float:
    """How long a start of Ray is repeated: MEGAPTM_RAY_START_SECONDS, or ten minutes."""
    text = os.environ.get(VARIABLE) or str(START_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(f"{VARIABLE} ({text}): expected the seconds for which a start of Ray is repeated, as 600.")
    return seconds


class Attempts:
    """Says after a failed attempt whether there is time for another one, and waits for it."""

    def __init__(self, *, instead: str = "") -> None:
        """`instead`: what else to do after the last one, for the end of the sentence."""
        self.seconds, self._instead = start_seconds(), instead
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._begun, self._number = time.monotonic(), 0

    def again(self, why: str) -> None:
        """Return when the next attempt is due; a `UserError` if the time is over."""
        self._number += 1
        left = self._begun + self.seconds - time.monotonic()
        if left <= 0:
            times = "1 attempt" if self._number == 1 else f"{self._number} attempts"
            raise UserError(
                f"Ray did not start on node {self.node} in {self.seconds:.0f} s and {times} ({why}): start again when "
                f"the node is less busy, or set {VARIABLE} to more seconds{self._instead}."
            )
        print(
            f"Ray did not start on node {self.node} ({why}); trying again for another {left:.0f} s.",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(min(PAUSE_SECONDS, left))


def main(options: list[str]) -> int:
    """Start Ray; returns the exit code of `ray start`. With --block this is the end of Ray on this node.

    Prints one line to standard output when Ray runs; all that Ray says goes to standard error.
    """
    attempts = Attempts()
    while True:
        start = _Start(options)
        code = start.wait()
        if start.succeeded.is_set() or code == 0 or start.asked_to_stop:
            return code
        start.kill_rest()
        if code == EXIT_USER_ERROR:  # of click: a mistake in the options
            return code
        attempts.again(start.last_words or f"exit code {code}")


class _Start:
    """One `ray start`."""

    def __init__(self, options: list[str]) -> None:
        self.succeeded, self.asked_to_stop, self.last_words = threading.Event(), False, ""
        self._mark = secrets.token_hex(8)
        self._process = subprocess.Popen(
            module_command("ray.scripts.scripts", "start", *options),
            env={**os.environ, MARK: self._mark, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        assert self._process.stdout is not None
        # A thread: without --block the daemons may keep the pipe open after `ray start` has ended.
        self._reader = threading.Thread(target=self._pass_on, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def wait(self) -> int:
        code = self._process.wait()
        self._reader.join(timeout=1.0)
        return code

    def kill_rest(self) -> None:
        """Kill what a failed start has left: it would hold the ports of the next one."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark:
                    process.kill()
            except (psutil.Error, OSError):
                continue

    def _stop(self, number: int, _: object) -> None:
        self.asked_to_stop = True
        self._process.send_signal(number)

    def _pass_on(self, lines: IO[bytes]) -> None:
        for line in lines:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            if words := line.decode(errors="replace").strip():
                self.last_words = words[:200]
            if STARTED in line:
                self.succeeded.set()
                print("Ray runs on this node.", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)

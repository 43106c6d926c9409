"""`python -m megaptm.schedulers.ray.start OPTION...`: `ray start OPTION...`, retried until Ray runs on this node.

Ray gives a node 30 seconds to start. A node that is busy, or that reads Ray's files for the first time, can take
longer.
"""

from __future__ import annotations

import errno
import math
import os
import re
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
from megaptm.node import node_name
from megaptm.python_path import module_command

VARIABLE = "MEGAPTM_RAY_START_SECONDS"
START_SECONDS = 600.0
PAUSE_SECONDS = 2.0
ATTEMPT_SECONDS = 45.0
"""Minimum seconds of an attempt to start Ray, even if the limit is shorter. Ray gives up after 30, but tries to reach
the head of a cluster for a quarter of an hour."""
PORT = re.compile(r"--(?!min-worker|max-worker)(?:[a-z-]+-)?port=(\d+)")
STARTED = b"Ray runtime started"
PRIORITY = {"RAY_worker_niceness": "0"}
"""Environment with which workers have the normal priority. By default they have the lowest, so that other programs of
the node starve training and builds."""
MARK = "MEGAPTM_RAY_START"
"""Environment variable that identifies the processes of one attempt to start Ray."""


def retry_seconds() -> float:
    """Return the seconds for which a start of Ray is retried: MEGAPTM_RAY_START_SECONDS, or ten minutes."""
    text = os.environ.get(VARIABLE) or str(START_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(
            f"{VARIABLE} ({text}): expected the number of seconds for which a start of Ray is retried, such as 600."
        )
    return seconds


class StartRetries:
    """Waits between failed starts of Ray, until the time is over."""

    def __init__(self, *, alternative: str = "") -> None:
        """Start counting the time for retries. `alternative` ends the final error message with another remedy."""
        self.seconds, self._alternative = retry_seconds(), alternative
        self.node = node_name()
        self._started, self._number = time.monotonic(), 0

    @property
    def deadline(self) -> float:
        """Return the time, by the monotonic clock, after which there are no further attempts to start Ray."""
        return self._started + self.seconds

    def wait(self, reason: str) -> None:
        """Wait until the next attempt to start Ray. Raise UserError if the time is over."""
        self._number += 1
        left = self.deadline - time.monotonic()
        if left <= 0:
            times = "1 attempt" if self._number == 1 else f"{self._number} attempts"
            raise UserError(
                f"Ray did not start on node {self.node} in {self.seconds:.0f} s and {times} ({reason}): start again "
                f"when the node is less busy, or set {VARIABLE} to more seconds{self._alternative}."
            )
        print(
            f"Ray did not start on node {self.node} ({reason}); retrying for another {left:.0f} s.",
            file=sys.stderr,
            flush=True,
        )
        time.sleep(min(PAUSE_SECONDS, left))


def start_ray(options: list[str]) -> int:
    """Run `ray start` with these options, retried until Ray runs; return its exit code. With --block, that is when Ray
    ends on this node.

    One line goes to standard output when Ray runs; all output of Ray goes to standard error.
    """
    head = next((option.partition("=")[2] for option in options if option.startswith("--address=")), None)
    retries = StartRetries(alternative=f"; if no head runs at {head}, correct --address" if head else "")
    while True:
        start = _StartAttempt(options)
        code = start.wait(max(retries.deadline, time.monotonic() + ATTEMPT_SECONDS))
        if start.succeeded.is_set() or code == 0 or start.stop_requested:
            return code
        start.kill_remaining()
        if code == EXIT_USER_ERROR:  # click's exit code for invalid options
            return code
        retries.wait(_taken_port(options) or start.last_output or f"exit code {code}")


def _taken_port(options: list[str]) -> str | None:
    """Return a message that names the port of these options that another program uses, if any. Ray does not always
    print it."""
    for port in (int(match[1]) for option in options if (match := PORT.fullmatch(option))):
        try:
            socket.create_server(("", port)).close()
        except (OSError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                return f"port {port} is in use"
    return None


class _StartAttempt:
    """Attempt to start Ray by one call of `ray start`."""

    def __init__(self, options: list[str]) -> None:
        self.succeeded, self.stop_requested = threading.Event(), False
        self.last_output = ""
        self._mark = secrets.token_hex(8)
        self._process = subprocess.Popen(
            module_command("ray.scripts.scripts", "start", *options),
            env={**PRIORITY, **os.environ, MARK: self._mark, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward_signal)
        assert self._process.stdout is not None
        # A thread, because without --block the daemons may keep the pipe open after `ray start` has ended.
        self._reader = threading.Thread(target=self._copy_output, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def wait(self, deadline: float) -> int:
        """Return the exit code of `ray start`. At the deadline, a start that has not succeeded is killed."""
        while True:
            try:
                code = self._process.wait(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline and not (self.succeeded.is_set() or self.stop_requested):
                    self._process.kill()
        self._reader.join(timeout=1.0)
        return code

    def kill_remaining(self) -> None:
        """Kill the processes that a failed start leaves behind: they would hold the ports of the next one."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark:
                    process.kill()
            except (psutil.Error, OSError):
                continue

    def _forward_signal(self, number: int, _: object) -> None:
        self.stop_requested = True
        self._process.send_signal(number)

    def _copy_output(self, lines: IO[bytes]) -> None:
        for line in lines:
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
            if text := line.decode(errors="replace").strip():
                self.last_output = text[:200]
            if STARTED in line:
                self.succeeded.set()
                print("Ray runs on this node.", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(start_ray(sys.argv[1:]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)

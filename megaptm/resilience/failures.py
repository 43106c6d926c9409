"""Find the process that failed first: when one rank fails, the others fail as a consequence."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, printable
from megaptm.resilience.events import Events, InterruptEvent, StopSignalEvent, WorkerLostEvent, last_saved
from megaptm.resilience.watchdog import Hang, rank_spans

USER_ERROR = "error: "
TRACEBACK = "Traceback (most recent call last)"
TERMINATE = "terminate called"  # printed by C++ for an uncaught exception, as in NCCL's watchdog
SHOWN_LINES = 30
TAIL_BYTES = 64 * 1024

# Messages of gloo, NCCL and torch's store about a lost peer, and messages about faults of the own device, which look
# similar.
LOST_PEER = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket (closed|timeout)|remote process exited"
    r"|nccl (error|watchdog|communicator)|DistBackendError|DistNetworkError|DistStoreError"
    r"|gloo.*(timed? ?out|rank \d+ failed)",
    re.IGNORECASE,
)
OWN_DEVICE = re.compile(r"cuda error|ncclUnhandledCudaError|CUDA failure", re.IGNORECASE)

MAPPED = (
    "a file that it had mapped was cut short, or its disk failed; see that the disks of data.mix answer, and compare "
    "its corpora with their manifests (`megaptm corpus verify`)"
)
"""Cause of a bus error: indexes of shards are memory-mapped."""


@dataclass(frozen=True)
class ProcessExit:
    """Exit of one process."""

    rank: int
    code: int
    """Exit code, or minus the number of the signal."""
    log: Path
    begin: int
    """Offset in the log at which this launch starts."""
    unlogged: bytes = b""
    """Output that did not fit in the log because the disk was full."""

    @property
    def output_end(self) -> str:
        """Last part of the output."""
        with self.log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self.begin, size - TAIL_BYTES))
            return (file.read() + self.unlogged).decode(errors="replace").replace("\r", "\n")

    @property
    def last_error(self) -> str:
        """Return the last traceback; else the C++ termination message or the error message; else the last lines."""
        lines = self.output_end.rstrip().splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK)]
        starts = starts or [number for number, line in enumerate(lines) if line.startswith((TERMINATE, USER_ERROR))]
        shown = lines[starts[-1] :] if starts else lines[-5:]
        if len(shown) > SHOWN_LINES:
            shown = [*shown[:3], "  ...", *shown[4 - SHOWN_LINES :]]
        return "\n".join(shown)

    @property
    def problem(self) -> str:
        """Short description of the failure."""
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in {*signal.Signals} else "unknown"
            return f"was killed by signal {-self.code} ({name})"
        return self.last_error.rpartition("\n")[2] or f"failed with exit code {self.code}"

    @property
    def lost_a_peer(self) -> bool:
        """Whether the process failed because another one had failed."""
        # A killed process prints no such message. Abort is the exception: NCCL's watchdog uses it.
        by_itself = self.code > 0 or self.code == -signal.SIGABRT
        error = self.last_error
        return by_itself and LOST_PEER.search(error) is not None and OWN_DEVICE.search(error) is None

    def ended_by(self, number: int) -> bool:
        """Whether a signal ended the process. During start-up, Python turns Ctrl-C into an exception."""
        return -self.code == number or (number == signal.SIGINT and self.last_error.endswith("KeyboardInterrupt"))

    @property
    def user_error(self) -> str | None:
        """Error message for the user if the process exited with the code of a user's error, else None."""
        if self.code != EXIT_USER_ERROR:
            return None
        # Searched anywhere in a line, since on a full disk the line before may be incomplete.
        sentences = [line.partition(USER_ERROR)[2] for line in self.output_end.splitlines() if USER_ERROR in line]
        return sentences[-1] if sentences else None


def root_cause(ends: Sequence[ProcessExit]) -> ProcessExit:
    """Return the first process in `ends`, which is sorted by time, that did not fail because of a lost peer."""
    return next((end for end in ends if not end.lost_a_peer), ends[0])


def failure_report(end: ProcessExit) -> str:
    """Return the description of a failure for the terminal."""
    said = end.output_end.strip()
    if end.code == -signal.SIGKILL:  # SIGKILL leaves no message
        return f"rank {end.rank} {end.problem}; if nobody did it, the machine was out of memory"
    if end.code == -signal.SIGBUS:
        return f"rank {end.rank} {end.problem}: {MAPPED}"
    if end.code < 0:
        return f"rank {end.rank} {end.problem}" + (f":\n{end.last_error}" if said else "")
    if not said:
        return f"rank {end.rank} failed with exit code {end.code} and said nothing"
    return f"rank {end.rank} failed:\n{end.last_error}"


def failures(ends: Sequence[ProcessExit]) -> list[ProcessExit]:
    """Return the processes whose exit code is neither success nor "continue"."""
    return [end for end in ends if end.code not in (0, EXIT_CONTINUE)]


def exit_code(ends: Sequence[ProcessExit], *, run: Path, logs: Path, forwarded: Collection[int]) -> int:
    """Print what failed, the root cause first, and return the exit code of the launcher.

    `forwarded`: signals that were passed on to all processes.
    """
    failed = failures(ends)
    if not failed:
        return EXIT_CONTINUE if any(end.code == EXIT_CONTINUE for end in ends) else 0
    cause = root_cause(failed)
    stopped_by = next((number for number in forwarded if cause.ended_by(number)), None)
    if stopped_by is not None:
        name = signal.Signals(stopped_by).name
        with Events(run) as events:
            events.write(StopSignalEvent(signal=name))
        print(f"Stopped by {name} before a step was done; what was saved earlier stands.", file=sys.stderr)
        return EXIT_CONTINUE
    with Events(run) as events:
        events.write(WorkerLostEvent(rank=cause.rank, code=cause.code, problem=cause.problem))
    if cause.user_error is not None:
        raise UserError(cause.user_error)
    print(printable(failure_report(cause)), file=sys.stderr)
    others = [end.rank for end in failed if end is not cause]
    after = f" Then failed: rank {rank_spans(others)}." if others else ""
    print(f"What each rank wrote is in {logs}.{after}", file=sys.stderr, flush=True)
    return EXIT_FAILURE


def exit_code_of_hang(hang: Hang, *, run: Path) -> int:
    """Print and record a hang; return the exit code, which means that the run can be continued."""
    print(printable(str(hang)), file=sys.stderr, flush=True)
    # A full or failing disk may have caused the hang, and must not prevent the exit.
    with contextlib.suppress(OSError), Events(run) as events:
        events.write(hang.event)
    return EXIT_CONTINUE


def exit_code_of_interrupt(*, run: Path) -> int:
    """Print and record an interrupt by the user, which is not a failure; return the exit code."""
    saved = last_saved(run)
    kept = f"step {saved} is saved" if saved else "nothing was saved yet"
    print(f"Left at once; {kept}.", file=sys.stderr, flush=True)
    if run.exists():
        with Events(run) as events:
            events.write(InterruptEvent())
    return EXIT_INTERRUPTED

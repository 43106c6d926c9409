"""Which process failed first: when one of a run dies the others die of it, and their complaints are noise."""

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
TERMINATE = "terminate called"  # what C++ says of an exception that nobody catches, as in NCCL's watchdog
SHOWN_LINES = 30
TAIL_BYTES = 64 * 1024

# How gloo, NCCL and torch's store say that a peer is gone, and what they say it of without one being gone: whatever a
# device refuses after a fault of this process's own.
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
"""What a bus error comes of: shards are mapped into memory."""


@dataclass(frozen=True)
class ProcessExit:
    """How one process ended by itself."""

    rank: int
    code: int
    """Exit code, or minus the signal's number."""
    log: Path
    begin: int
    """Byte of the log where this launch began."""
    unlogged: bytes = b""
    """What it wrote that found no room in the log."""

    @property
    def output_end(self) -> str:
        """The end of what it wrote."""
        with self.log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self.begin, size - TAIL_BYTES))
            return (file.read() + self.unlogged).decode(errors="replace").replace("\r", "\n")

    @property
    def last_error(self) -> str:
        """From the last traceback on; without one, from where C++ gave up or its own sentence, or the last lines."""
        lines = self.output_end.rstrip().splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith(TRACEBACK)]
        starts = starts or [number for number, line in enumerate(lines) if line.startswith((TERMINATE, USER_ERROR))]
        shown = lines[starts[-1] :] if starts else lines[-5:]
        if len(shown) > SHOWN_LINES:
            shown = [*shown[:3], "  ...", *shown[4 - SHOWN_LINES :]]
        return "\n".join(shown)

    @property
    def problem(self) -> str:
        """What it died of, in a few words."""
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in {*signal.Signals} else "unknown"
            return f"was killed by signal {-self.code} ({name})"
        return self.last_error.rpartition("\n")[2] or f"failed with exit code {self.code}"

    @property
    def lost_a_peer(self) -> bool:
        """Whether it died because another one had."""
        # A process that is killed says nothing about it. Abort is the exception: it is how NCCL's watchdog gives up.
        by_itself = self.code > 0 or self.code == -signal.SIGABRT
        error = self.last_error
        return by_itself and LOST_PEER.search(error) is not None and OWN_DEVICE.search(error) is None

    def ended_by(self, number: int) -> bool:
        """Whether a signal ended it; Python that is still starting turns Ctrl-C into an exception."""
        return -self.code == number or (number == signal.SIGINT and self.last_error.endswith("KeyboardInterrupt"))

    @property
    def user_error(self) -> str | None:
        """What a worker says to the user when it exits with the code of a user's mistake."""
        if self.code != EXIT_USER_ERROR:
            return None
        # Not always at the beginning of a line: on a full disk the line before it may have been torn.
        sentences = [line.partition(USER_ERROR)[2] for line in self.output_end.splitlines() if USER_ERROR in line]
        return sentences[-1] if sentences else None


def root_cause(ends: Sequence[ProcessExit]) -> ProcessExit:
    """The process that failed on its own: of `ends`, in order of time, the first that did not merely lose a peer."""
    return next((end for end in ends if not end.lost_a_peer), ends[0])


def failure_report(end: ProcessExit) -> str:
    """What happened to a process, for the terminal."""
    said = end.output_end.strip()
    if end.code == -signal.SIGKILL:  # nobody can say anything when this comes
        return f"rank {end.rank} {end.problem}; if nobody did it, the machine was out of memory"
    if end.code == -signal.SIGBUS:
        return f"rank {end.rank} {end.problem}: {MAPPED}"
    if end.code < 0:
        return f"rank {end.rank} {end.problem}" + (f":\n{end.last_error}" if said else "")
    if not said:
        return f"rank {end.rank} failed with exit code {end.code} and said nothing"
    return f"rank {end.rank} failed:\n{end.last_error}"


def failures(ends: Sequence[ProcessExit]) -> list[ProcessExit]:
    """Those that ended neither well nor to be continued."""
    return [end for end in ends if end.code not in (0, EXIT_CONTINUE)]


def exit_code(ends: Sequence[ProcessExit], *, run: Path, logs: Path, forwarded: Collection[int]) -> int:
    """Say what went wrong, the root cause first, and return the exit code of the whole.

    `forwarded`: signals that were passed on to all.
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
    """Say and write down who hangs; returns the exit code of the whole: it can be continued."""
    print(printable(str(hang)), file=sys.stderr, flush=True)
    # A disk that is full or gone may be why it hangs; its end does not depend on that.
    with contextlib.suppress(OSError), Events(run) as events:
        events.write(hang.event)
    return EXIT_CONTINUE


def exit_code_of_interrupt(*, run: Path) -> int:
    """Somebody wished to leave at once: nobody has failed."""
    saved = last_saved(run)
    kept = f"step {saved} is saved" if saved else "nothing was saved yet"
    print(f"Left at once; {kept}.", file=sys.stderr, flush=True)
    if run.exists():
        with Events(run) as events:
            events.write(InterruptEvent())
    return EXIT_INTERRUPTED

"""Search for the rank of a run that failed first: when one rank fails, the others fail as a consequence."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megaptm.errors import EXIT_CONTINUE, EXIT_FAILURE, EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError, printable
from megaptm.resilience.events import (
    Event,
    InterruptEvent,
    StopSignalEvent,
    WorkerLostEvent,
    last_saved_step,
    record_events,
)
from megaptm.resilience.watchdog import Hang, format_ranks

USER_ERROR = "error: "
TRACEBACK = "Traceback (most recent call last)"
TERMINATE = "terminate called"  # printed by C++ for an uncaught exception, as in NCCL's watchdog
MAX_SHOWN_LINES = 30
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
OUT_OF_MEMORY = re.compile(r"out of memory", re.IGNORECASE)

BUS_ERROR_CAUSE = (
    "a memory-mapped file, such as the index of a shard, was truncated, or its disk failed; check the disks of "
    "data.mix, and verify its corpora (`megaptm corpus verify`)"
)
"""Explanation of a bus error (SIGBUS) for the user."""


@dataclass(frozen=True)
class ProcessExit:
    """Exit of one process of a run."""

    rank: int
    code: int
    """Exit code of the process, or minus the number of the signal."""
    log: Path
    log_start: int
    """Offset in the process's log at which this launch starts."""
    unlogged: bytes = b""
    """Output of the process that did not fit in the log because the disk was full."""

    @property
    def output_end(self) -> str:
        """Return the last part of a failed process's output."""
        with self.log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self.log_start, size - TAIL_BYTES))
            return (file.read() + self.unlogged).decode(errors="replace").replace("\r", "\n")

    @property
    def last_error(self) -> str:
        """Return the error of a failed process from its output: the last traceback; else the C++ termination message or
        the error message; else the last lines."""
        lines = self.output_end.rstrip().splitlines()
        starts = [index for index, line in enumerate(lines) if line.startswith(TRACEBACK)]
        starts = starts or [index for index, line in enumerate(lines) if line.startswith((TERMINATE, USER_ERROR))]
        shown_lines = lines[starts[-1] :] if starts else lines[-5:]
        if len(shown_lines) > MAX_SHOWN_LINES:
            shown_lines = [*shown_lines[:3], "  ...", *shown_lines[4 - MAX_SHOWN_LINES :]]
        return "\n".join(shown_lines)

    @property
    def problem(self) -> str:
        """Return a short description of why the process failed."""
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in {*signal.Signals} else "unknown"
            return f"was killed by signal {-self.code} ({name})"
        return self.last_error.rpartition("\n")[2] or f"failed with exit code {self.code}"

    @property
    def failed_after_another_rank(self) -> bool:
        """Whether the process failed because another rank had failed."""
        # A killed process prints no such message. Abort is the exception: NCCL's watchdog uses it.
        may_print = self.code > 0 or self.code == -signal.SIGABRT
        error = self.last_error
        return may_print and LOST_PEER.search(error) is not None and OWN_DEVICE.search(error) is None

    @property
    def is_fault_of_machine(self) -> bool:
        """Whether a restart may help: the process was killed, its device or a peer failed, or it reported a failure
        that is not a mistake of the user. After a traceback of the program a restart would fail again."""
        if self.code < 0:
            return True
        error = self.last_error
        return self.code == EXIT_FAILURE and (
            error.startswith(USER_ERROR) or self.has_device_error or LOST_PEER.search(error) is not None
        )

    @property
    def is_fault_of_node(self) -> bool:
        """Whether the process was killed or its device failed, and not because another rank had failed."""
        failed = self.code < 0 or (self.code == EXIT_FAILURE and self.has_device_error)
        return failed and not self.failed_after_another_rank

    @property
    def has_device_error(self) -> bool:
        """Whether the process's error is one of its device, other than too little memory."""
        error = self.last_error
        return OWN_DEVICE.search(error) is not None and OUT_OF_MEMORY.search(error) is None

    def was_ended_by(self, number: int) -> bool:
        """Whether a signal ended the process. During start-up, Python turns Ctrl-C into an exception."""
        return -self.code == number or (number == signal.SIGINT and self.last_error.endswith("KeyboardInterrupt"))

    @property
    def user_error(self) -> str | None:
        """Return the error message for the user if the process exited with the code of a user's error, else None."""
        if self.code != EXIT_USER_ERROR:
            return None
        # Searched anywhere in a line, since on a full disk the line before may be incomplete.
        messages = [line.partition(USER_ERROR)[2] for line in self.output_end.splitlines() if USER_ERROR in line]
        return messages[-1] if messages else None


def root_cause(ends: Sequence[ProcessExit]) -> ProcessExit:
    """Return the process that failed first: the first in `ends`, which is sorted by time, that did not fail because of
    another rank."""
    return next((end for end in ends if not end.failed_after_another_rank), ends[0])


def describe_failure(end: ProcessExit) -> str:
    """Return the description of a process's failure for the terminal."""
    has_output = end.output_end.strip() != ""
    if end.code == -signal.SIGKILL:  # SIGKILL leaves no message
        return f"rank {end.rank} {end.problem}; unless a user killed it, the machine ran out of memory"
    if end.code == -signal.SIGBUS:
        return f"rank {end.rank} {end.problem}: {BUS_ERROR_CAUSE}"
    if end.code < 0:
        return f"rank {end.rank} {end.problem}" + (f":\n{end.last_error}" if has_output else "")
    if not has_output:
        return f"rank {end.rank} failed with exit code {end.code} and printed nothing"
    return f"rank {end.rank} failed:\n{end.last_error}"


def failed_exits(ends: Sequence[ProcessExit]) -> list[ProcessExit]:
    """Return the exits of ranks that failed: their exit code is neither success nor "continue"."""
    return [end for end in ends if end.code not in (0, EXIT_CONTINUE)]


def report_exits(
    ends: Sequence[ProcessExit],
    *,
    run: Path,
    logs: Path,
    forwarded: Collection[int],
    nodes: Mapping[int, str] | None = None,
) -> int:
    """Print which processes of a run failed, the root cause first, and return the exit code of the launcher.

    `forwarded`: signals that were passed on to all processes. `nodes`: node of each rank, if the launcher knows it.
    """
    failed = failed_exits(ends)
    if not failed:
        return EXIT_CONTINUE if any(end.code == EXIT_CONTINUE for end in ends) else 0
    cause = root_cause(failed)
    stopped_by = next((number for number in forwarded if cause.was_ended_by(number)), None)
    if stopped_by is not None:
        return report_stop(stopped_by, run=run)
    node = nodes[cause.rank] if nodes and cause.is_fault_of_node else None
    record_events(run, WorkerLostEvent(rank=cause.rank, code=cause.code, problem=cause.problem, node=node))
    if cause.user_error is not None:
        raise UserError(cause.user_error)
    print(printable(describe_failure(cause)), file=sys.stderr)
    other_ranks = [end.rank for end in failed if end is not cause]
    later = f" Failed later: rank {format_ranks(other_ranks)}." if other_ranks else ""
    print(f"Logs of the ranks: {logs}.{later}", file=sys.stderr, flush=True)
    return EXIT_FAILURE


def report_stop(number: int, *, run: Path) -> int:
    """Print and record that a signal stopped a run while its processes made no step; return the exit code."""
    name = signal.Signals(number).name
    record_events(run, StopSignalEvent(signal=name))
    print(f"Stopped by {name} before the first step; earlier checkpoints are intact.", file=sys.stderr)
    return EXIT_CONTINUE


def report_hang(hang: Hang, *, run: Path, signals: Collection[int] = ()) -> int:
    """Print and record a hang of a run; return the exit code, which means that the run can be continued.

    `signals`: signals that asked the run to stop. If they end a slow start, a stop is recorded instead of a hang,
    because after two hangs a run is not restarted.
    """
    event: Event = hang.event
    message = str(hang)
    if hang.is_slow_start and signals:
        name = signal.Signals(min(signals)).name
        event = StopSignalEvent(signal=name)
        message = (
            f"Stopped by {name} before the first step: after {hang.event.seconds:,.0f} s, rank {hang.event.rank} was "
            "still starting and was killed. Earlier checkpoints are intact."
        )
    print(printable(message), file=sys.stderr, flush=True)
    record_events(run, event)
    return EXIT_CONTINUE


def report_interrupt(*, run: Path) -> int:
    """Print and record that the user interrupted a run, which is not a failure; return the exit code."""
    step = last_saved_step(run)
    result = f"the newest checkpoint is of step {step}" if step else "no checkpoint was saved"
    print(f"Exited without saving; {result}.", file=sys.stderr, flush=True)
    if run.exists():
        record_events(run, InterruptEvent())
    return EXIT_INTERRUPTED

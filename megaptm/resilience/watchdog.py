"""Detect a hang of a run, and the rank that causes it, from heartbeats. Does not import torch."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megaptm.resilience.events import HangEvent
from megaptm.resilience.heartbeat import (
    END,
    HANG_SECONDS,
    STACKS,
    Beat,
    beat_seconds,
    give_order,
    is_halted,
    read_beat,
    stacks_file,
)

LONG = 20.0
"""Factor on the hang time for start-up, saving, validation and shutdown, which may take long."""
START_SECONDS = 300.0
"""Minimum hang time of start-up: reading code and a checkpoint takes long even if steps are short and
`train.hang_seconds` is small."""
STEPS = 10.0
"""Factor on the longest recent step: a step hangs if it takes longer than this and than the hang time."""
STOP_SECONDS = 60.0
"""Maximum hang time of a run that was asked to stop, except while it saves."""
HALTED_STOP_SECONDS = 10.0
"""Maximum hang time of a stopped process (SIGSTOP) in such a run, because it cannot save."""
ANSWER_SECONDS = 5.0
LONGEST_PAUSE = 1.0
"""Maximum seconds between polls for answers of ranks."""
STACK_LINES = 40
SPANS = 8
"""Maximum number of rank spans in a message."""

PHASES = {
    "starting": "starting up",
    "loading": "loading the checkpoint",
    "data": "waiting for the data of step {next}",
    "step": "in step {next}",
    "validation": "measuring the validation loss after step {step}",
    "saving": "saving after step {step}",
    "between": "between two parts of its work, after step {step}",
    "ending": "ending, after step {step}",
}
BEGINNING = ("starting", "loading")
# Frames in which a rank waits for other ranks.
WAITING = re.compile(
    r"torch/distributed/|megatron/core/(pipeline_parallel|distributed|tensor_parallel/mappings)"
    r"|megaptm/parallel/collectives\.py|in pass_on$"  # in `words.sharded_table.Exchange`, waiting for what it has sent
)
WAITING_FRAMES = 4
HALTED = "state T: a signal, SIGSTOP, or a debugger"


def collective_minutes(hang_seconds: float | None) -> float:
    """Return the timeout of collectives in minutes. It is longer than the watchdog's, which can tell which rank
    hangs."""
    return max(30.0, 1.5 * LONG * (hang_seconds or 0.0) / 60)


@dataclass
class Seen:
    """Observed state of a rank."""

    beat: Beat | None = None
    pid: int | None = None
    """Process id on this machine, if the launcher knows it."""
    silent: float = 0.0
    """Seconds since its last beat."""
    still: float = 0.0
    """Seconds since its last change of phase."""
    waited: float = 0.0
    """Part of `still` before the run was asked to stop."""

    @property
    def phase(self) -> str:
        return self.beat.phase if self.beat else "starting"

    @property
    def position(self) -> int:
        return self.beat.position if self.beat else -1

    @property
    def pid_here(self) -> int | None:
        """Id of its process if that is on this machine, else None."""
        return self.beat.pid if self.beat is not None and self.beat.host == socket.gethostname() else self.pid

    @property
    def halted(self) -> bool:
        """Whether its process is stopped (SIGSTOP), as far as known; False on another machine."""
        return self.pid_here is not None and is_halted(self.pid_here)

    @property
    def halted_readers(self) -> Sequence[int]:
        """Stopped reader processes of a rank that waits for data."""
        return self.beat.halted_readers if self.beat is not None and self.phase == "data" else ()

    def doing(self) -> str:
        """Return a description of its phase."""
        step = self.beat.step if self.beat else 0
        return PHASES.get(self.phase, self.phase).format(step=f"{step:,}", next=f"{step + 1:,}")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits for missing beats and missing progress."""

    hang_seconds: float | None = None
    """Configured hang time. None: only a run that was asked to stop is ended."""
    patience: float = 0.0
    """Additional seconds to wait for data."""
    times: float = 1.0
    """Factor on all other limits, for a watchdog that acts after another one."""

    @property
    def every(self) -> float:
        """Seconds between two beats."""
        return beat_seconds(self.hang_seconds)

    def is_quiet(self, seen: Seen) -> bool:
        """Whether expected beats are missing."""
        return seen.silent > 3 * self.every

    def suspects(self, alive: Mapping[int, Seen], *, stopping: bool) -> list[int]:
        """Return the ranks without beats for too long, or else the ranks behind all others if they make no progress for
        too long."""
        quiet = {rank: seen for rank, seen in alive.items() if self.is_quiet(seen)}
        # If all ranks are quiet, the shared disk may be the reason.
        all_quiet = len(quiet) == len(alive)
        silent = [
            rank
            for rank, seen in quiet.items()
            if seen.silent > self.times * self._silence(seen, all_quiet=all_quiet, stopping=stopping)
        ]
        if silent:
            return silent
        last = min((seen.position for seen in alive.values()), default=0)
        behind = {rank: seen for rank, seen in alive.items() if seen.position == last}
        too_long = (seen.still > self.times * self._standing(seen, stopping=stopping) for seen in behind.values())
        return [*behind] if all(too_long) else []

    def _silence(self, seen: Seen, *, all_quiet: bool, stopping: bool) -> float:
        hang = self.hang_seconds or HANG_SECONDS
        if seen.halted:
            return min(hang, HALTED_STOP_SECONDS) if stopping else hang
        if stopping:
            return min(hang, STOP_SECONDS)
        if seen.phase in BEGINNING:
            return self._start_up
        return hang * LONG if all_quiet else hang

    def _standing(self, seen: Seen, *, stopping: bool) -> float:
        hang = self.hang_seconds or HANG_SECONDS
        if seen.phase in BEGINNING:
            return min(hang, STOP_SECONDS) if stopping else self._start_up  # nothing to save when asked to stop
        if seen.beat is None or seen.phase not in ("data", "step", "between"):
            return hang * LONG
        if seen.halted_readers:  # not caused by a slow server
            return min(hang, HALTED_STOP_SECONDS) if stopping else hang
        if seen.beat.step_seconds == 0.0:  # the first step builds kernels and opens connections
            return hang if stopping else self._start_up
        hang = min(hang, STOP_SECONDS) if stopping else hang
        # A rank may have waited for a server for long before the run was asked to stop, and should still be able to
        # save.
        patient = (seen.waited if stopping else self.patience) if seen.phase == "data" else 0.0
        return max(hang, STEPS * seen.beat.step_seconds) + patient

    @property
    def _start_up(self) -> float:
        return max((self.hang_seconds or HANG_SECONDS) * LONG, START_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Hang:
    """Hang of a run, with the rank that causes it."""

    rank: int
    phase: str
    step: int
    seconds: float
    """Seconds without progress."""
    problem: str
    """One line of text."""
    stack: str
    """Stack of the main thread of that rank, innermost call first; empty if unavailable."""
    folder: Path

    def __str__(self) -> str:
        stack = f" Its stack, the innermost call first:\n{self.stack}" if self.stack else ""
        return (
            f"{self.problem}{stack}\nThe stacks of all ranks are in {self.folder}. The run is ended; started again, it "
            "goes on from what was saved."
        )

    @property
    def event(self) -> HangEvent:
        return HangEvent(
            rank=self.rank,
            phase=self.phase,
            step=self.step,
            seconds=round(self.seconds, 3),
            problem=self.problem,
            stack=self.stack,
        )


class Watchdog:
    """Observer of the heartbeats of some ranks, in a folder of this start.

    Time between calls of `look` counts only up to a limit, because the machine may have been suspended.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Iterable[int],
        *,
        limits: Limits,
        within: bool = False,
    ) -> None:
        """Without `hang_seconds`, only a run that was asked to stop is ended. `within`: a rank is the observer, and
        learns from the last beat that another rank has ended."""
        self._within = within
        self.folder = folder
        self._limits = limits
        self._seen = {rank: Seen() for rank in ranks}
        self._stopping = False
        self._every = limits.every
        self._looked = time.monotonic()

    def clear(self) -> Watchdog:
        """Create the folder, and remove the files of an earlier start."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        give_order(self.folder, "")
        return self

    def know(self, pids: Mapping[int, int]) -> None:
        """Set the process ids of ranks on this machine."""
        for rank, pid in pids.items():
            self._seen[rank].pid = pid

    def look(self, ended: Collection[int] = (), *, stopping: bool = False) -> Hang | None:
        """Return a hang of the ranks that have not ended, or None. To be called frequently."""
        now = time.monotonic()
        if now - self._looked < self._every:
            return None
        elapsed, self._looked = min(now - self._looked, 2 * self._every), now
        self._read(elapsed)
        if stopping and not self._stopping:
            for seen in self._seen.values():
                seen.waited = seen.still
        self._stopping = stopping
        if self._limits.hang_seconds is None and not stopping:
            return None
        suspects = self._suspects(ended, stopping=stopping)
        return self._judge(suspects, ended, stopping=stopping) if suspects else None

    def _read(self, elapsed: float) -> None:
        for rank, seen in self._seen.items():
            beat = read_beat(self.folder, rank) or seen.beat
            silent = beat is None or (seen.beat is not None and beat.count == seen.beat.count)
            still = beat is None or beat.position == seen.position
            seen.silent = seen.silent + elapsed if silent else 0.0
            seen.still = seen.still + elapsed if still else 0.0
            seen.waited = seen.waited if still else 0.0
            seen.beat = beat

    def _suspects(self, ended: Collection[int], *, stopping: bool) -> list[int]:
        alive = {rank: seen for rank, seen in self._seen.items() if rank not in ended}
        if self._within:
            alive = {rank: seen for rank, seen in alive.items() if seen.phase != "ended"}
        return self._limits.suspects(alive, stopping=stopping) if alive else []

    def _judge(self, suspects: list[int], ended: Collection[int], *, stopping: bool) -> Hang | None:
        """Collect stacks and identify the hanging rank, unless there is progress in the meantime."""
        self._ask_for_stacks([rank for rank in self._seen if rank not in ended])
        self._read(0.0)
        if self._suspects(ended, stopping=stopping) != suspects:
            give_order(self.folder, "")
            return None
        stacks = {rank: self._stack(rank) for rank in suspects}
        rank, also = find_hanging_rank(stacks)
        seen = self._seen[rank]
        seconds = max(seen.silent, seen.still) if self._limits.is_quiet(seen) else seen.still
        problem = f"rank {rank} hangs: for {seconds:,.0f} s it has been {seen.doing()}{self._how(seen)}{also}."
        step = seen.beat.step if seen.beat else 0
        stack = "" if seen.halted else stacks[rank]
        return Hang(
            rank=rank,
            phase=seen.phase,
            step=step,
            seconds=seconds,
            problem=problem,
            stack=stack,
            folder=self.folder,
        )

    def _how(self, seen: Seen) -> str:
        if seen.halted:
            return f", and its process is halted ({HALTED})"
        if readers := seen.halted_readers:
            which = f"{'process' if len(readers) == 1 else 'processes'} {', '.join(map(str, readers))}"
            return f", and of those that read its data {which} {'is' if len(readers) == 1 else 'are'} halted ({HALTED})"
        if self._limits.is_quiet(seen):
            return ", without a sign of life: it never lets its threads run, or its node does not answer"
        return ""

    def _ask_for_stacks(self, ranks: Collection[int]) -> None:
        answering = [rank for rank in ranks if not self._limits.is_quiet(self._seen[rank])]
        before = {rank: self._dumped_bytes(rank)[0] for rank in answering}
        give_order(self.folder, STACKS)
        deadline, pause = time.monotonic() + 2 * self._every + ANSWER_SECONDS, min(0.1, self._every)
        while answering and time.monotonic() < deadline:
            time.sleep(pause)
            # With a thousand ranks, a poll opens a thousand files on a shared disk.
            pause = min(1.5 * pause, LONGEST_PAUSE)
            ends = {rank: self._dumped_bytes(rank) for rank in answering}
            answering = [rank for rank, (size, end) in ends.items() if size == before[rank] or end != END]

    def _dumped_bytes(self, rank: int) -> tuple[int, bytes]:
        """Return size and last bytes of a dump. The file is opened, because network file systems otherwise return old
        data."""
        try:
            with stacks_file(self.folder, rank).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(END)))
                return size, file.read()
        except OSError:
            return 0, b""

    def _dumped(self, rank: int) -> bytes:
        try:
            return stacks_file(self.folder, rank).read_bytes()
        except OSError:
            return b""

    def _stack(self, rank: int) -> str:
        """Return the stack of the main thread from the newest dump."""
        beat, text = self._seen[rank].beat, self._dumped(rank).decode(errors="replace")
        if beat is None:
            return ""
        # Format: `Thread 0x00007f... [name] (most recent call first):`, then one line per frame.
        parts = re.split(r"^(?:Current thread|Thread) (0x[0-9a-f]+)[^\n]*\n", text, flags=re.MULTILINE)
        found = [text for number, text in zip(parts[1::2], parts[2::2], strict=True) if int(number, 16) == beat.thread]
        frames = [line for line in found[-1].splitlines() if line.startswith("  ")] if found else []
        return "\n".join(frames[:STACK_LINES])


def find_hanging_rank(stacks: Mapping[int, str]) -> tuple[int, str]:
    """Return the lowest rank that does not wait for others, and a message about the remaining ranks."""
    busy = [rank for rank, stack in stacks.items() if not _waits(stack)]
    if len(stacks) > 1 and not busy:
        return min(stacks), f"; all {len(stacks):,} that are there (rank {rank_spans(stacks)}) wait for each other"
    rank, *others = sorted(busy or stacks)
    return rank, f"; so does rank {rank_spans(others)}" if others else ""


def rank_spans(ranks: Iterable[int]) -> str:
    """Format ranks as spans: `0, 1, 4-1023`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    words = [
        f"{first}-{last}" if last > first + 1 else ", ".join(map(str, sorted({first, last}))) for first, last in spans
    ]
    left = sum(last - first + 1 for first, last in spans[SPANS:])
    return ", ".join(words[:SPANS]) + (f" and {left:,} more" if left else "")


def _waits(stack: str) -> bool:
    """Whether a stack is that of a process that waits for others."""
    return any(WAITING.search(frame) for frame in stack.splitlines()[:WAITING_FRAMES])

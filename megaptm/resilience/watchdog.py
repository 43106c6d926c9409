"""Watchdog: detects a hang of a run, and the rank that causes it, from heartbeats. Does not import torch."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from megaptm.node import node_name
from megaptm.resilience.events import HangEvent
from megaptm.resilience.heartbeat import (
    END,
    HANG_SECONDS,
    STACKS,
    Beat,
    beat_seconds,
    is_process_halted,
    read_beats,
    stacks_file,
    write_request,
)

LONG_PHASE_FACTOR = 20.0
"""Factor on the hang time for start-up, saving, validation, callbacks and shutdown, which may take long."""
START_SECONDS = 300.0
"""Minimum hang time of start-up: reading code and a checkpoint takes long even if steps are short and
`train.hang_seconds` is small."""
STEP_FACTOR = 10.0
"""Factor on the longest recent step: a step hangs if it takes longer than this and than the hang time."""
STOP_SECONDS = 60.0
"""Maximum hang time of a run that was asked to stop, except while it saves."""
HALTED_STOP_SECONDS = 10.0
"""Maximum hang time of a stopped process (SIGSTOP) in a run that was asked to stop, because it cannot save."""
ANSWER_SECONDS = 5.0
MAX_POLL_SECONDS = 1.0
"""Maximum seconds between two polls of heartbeats."""
STACK_LINES = 40
SPANS = 8
"""Maximum number of rank spans (`0-7`) in a message about a hang."""

PHASES = {
    "starting": "starting up",
    "loading": "loading the checkpoint",
    "data": "waiting for the data of step {next}",
    "step": "in step {next}",
    "validation": "measuring the validation loss after step {step}",
    "saving": "saving after step {step}",
    "callbacks": "calling callbacks after step {step}",
    "between": "between two parts of its work, after step {step}",
    "ending": "ending, after step {step}",
}
START_PHASES = ("starting", "loading")
STEP_PHASES = ("data", "step", "between")
# Frames in which a rank waits for other ranks.
WAITING = re.compile(
    r"torch/distributed/|megatron/core/(pipeline_parallel|distributed|tensor_parallel/mappings)"
    r"|megaptm/parallel/(collectives|waits)\.py"
)
WAITING_FRAMES = 4
STOPPED_STATE = "state T, by SIGSTOP or a debugger"


def collective_timeout_minutes(hang_seconds: float | None) -> float:
    """Return the timeout of collectives in minutes. It is longer than the watchdog's, which can tell which rank
    hangs."""
    return max(30.0, 1.5 * LONG_PHASE_FACTOR * (hang_seconds or 0.0) / 60)


@dataclass
class RankState:
    """Observed state of a rank, from its heartbeats."""

    beat: Beat | None = None
    pid: int | None = None
    """Process id of the rank on this machine, if the launcher knows it."""
    seconds_silent: float = 0.0
    """Seconds since the last heartbeat of the rank."""
    seconds_in_phase: float = 0.0
    """Seconds since the last phase change of the rank."""
    waited_before_stop: float = 0.0
    """Part of `seconds_in_phase` before the run was asked to stop."""

    @property
    def phase(self) -> str:
        return self.beat.phase if self.beat else "starting"

    @property
    def is_starting(self) -> bool:
        """Whether the rank has not finished a step since its process started."""
        return self.phase in START_PHASES or (
            self.beat is not None and self.phase in STEP_PHASES and self.beat.step_seconds == 0.0
        )

    @property
    def position(self) -> int:
        return self.beat.position if self.beat else -1

    @property
    def local_pid(self) -> int | None:
        """Return the process id of a rank if it is on this machine, else None."""
        return self.beat.pid if self.beat is not None and self.beat.host == node_name() else self.pid

    @property
    def halted(self) -> bool:
        """Whether the process of a rank is stopped (SIGSTOP), as far as known; False on another machine."""
        return self.local_pid is not None and is_process_halted(self.local_pid)

    @property
    def halted_readers(self) -> Sequence[int]:
        """Return the process ids of stopped data readers of a rank that waits for data."""
        return self.beat.halted_readers if self.beat is not None and self.phase == "data" else ()

    def describe_phase(self) -> str:
        """Return a description of the phase that a rank is in."""
        step = self.beat.step if self.beat else 0
        return PHASES.get(self.phase, self.phase).format(step=f"{step:,}", next=f"{step + 1:,}")


@dataclass(frozen=True, kw_only=True)
class WatchdogLimits:
    """Time limits of the watchdog for missing heartbeats and missing progress."""

    hang_seconds: float | None = None
    """Configured hang time (`train.hang_seconds`). None: only a run that was asked to stop is ended."""
    data_timeout: float = 0.0
    """Additional seconds for which the watchdog lets a rank wait for data."""
    factor: float = 1.0
    """Factor of all other limits of the watchdog, if it acts after another watchdog."""

    @property
    def interval(self) -> float:
        """Return the seconds between two heartbeats."""
        return beat_seconds(self.hang_seconds)

    def misses_beats(self, state: RankState) -> bool:
        """Whether expected heartbeats of a rank are missing."""
        return state.seconds_silent > 3 * self.interval

    def is_slow_start(self, state: RankState) -> bool:
        """Whether a rank is still starting, within the time that a start may take."""
        if state.halted or state.halted_readers or not state.is_starting:
            return False
        return max(state.seconds_silent, state.seconds_in_phase) <= self.factor * self._start_seconds

    def find_suspects(self, alive: Mapping[int, RankState], *, stopping: bool) -> list[int]:
        """Return the ranks that may hang: those without heartbeats for too long, or else those behind all others if
        they make no progress for too long."""
        quiet = {rank: state for rank, state in alive.items() if self.misses_beats(state)}
        # If all ranks are quiet, the shared disk may be the reason.
        all_quiet = len(quiet) == len(alive)
        silent_ranks = [
            rank
            for rank, state in quiet.items()
            if state.seconds_silent > self.factor * self._max_silence(state, all_quiet=all_quiet, stopping=stopping)
        ]
        if silent_ranks:
            return silent_ranks
        last = min((state.position for state in alive.values()), default=0)
        behind = {rank: state for rank, state in alive.items() if state.position == last}
        too_long = (
            state.seconds_in_phase > self.factor * self._max_phase_seconds(state, stopping=stopping)
            for state in behind.values()
        )
        return [*behind] if all(too_long) else []

    def _max_silence(self, state: RankState, *, all_quiet: bool, stopping: bool) -> float:
        hang = self.hang_seconds or HANG_SECONDS
        if state.halted:
            return min(hang, HALTED_STOP_SECONDS) if stopping else hang
        if stopping:
            return min(hang, STOP_SECONDS)
        if state.phase in START_PHASES:
            return self._start_seconds
        return hang * LONG_PHASE_FACTOR if all_quiet else hang

    def _max_phase_seconds(self, state: RankState, *, stopping: bool) -> float:
        hang = self.hang_seconds or HANG_SECONDS
        if state.phase in START_PHASES:
            return min(hang, STOP_SECONDS) if stopping else self._start_seconds  # nothing to save when asked to stop
        if state.beat is None or state.phase not in STEP_PHASES:
            return hang * LONG_PHASE_FACTOR
        if state.halted_readers:  # not caused by a slow server
            return min(hang, HALTED_STOP_SECONDS) if stopping else hang
        if state.beat.step_seconds == 0.0:  # the first step builds kernels and opens connections
            return hang if stopping else self._start_seconds
        hang = min(hang, STOP_SECONDS) if stopping else hang
        # A rank may have waited for a server for long before the run was asked to stop, and should still be able to
        # save.
        extra = (state.waited_before_stop if stopping else self.data_timeout) if state.phase == "data" else 0.0
        return max(hang, STEP_FACTOR * state.beat.step_seconds) + extra

    @property
    def _start_seconds(self) -> float:
        return max((self.hang_seconds or HANG_SECONDS) * LONG_PHASE_FACTOR, START_SECONDS)


@dataclass(frozen=True)
class Hang:
    """Hang of a run: the rank that causes it, and the folder with the stacks of all ranks."""

    event: HangEvent
    folder: Path
    is_slow_start: bool = False
    """Whether the run was asked to stop while the rank was starting, within the time that a start may take."""

    def __str__(self) -> str:
        stack = f" Its stack, innermost call first:\n{self.event.stack}" if self.event.stack else ""
        return (
            f"{self.event.problem}{stack}\nStacks of all ranks: {self.folder}. The run ends; start it again to "
            "continue from the newest checkpoint."
        )


class Watchdog:
    """Watchdog of the heartbeats of some ranks, in a folder of this start.

    Time between calls of `check_progress` counts only up to a limit, because the machine may have been suspended.
    """

    def __init__(self, folder: Path, ranks: Iterable[int], *, limits: WatchdogLimits, is_rank: bool = False) -> None:
        """Create the watchdog. Without `hang_seconds`, only a run that was asked to stop is ended. `is_rank`: the
        watchdog runs in a rank, which learns from the last heartbeat that another rank has ended."""
        self._is_rank = is_rank
        self.folder = folder
        self._limits = limits
        self._states = {rank: RankState() for rank in ranks}
        self._stopping = False
        self._interval = limits.interval
        self._last_check = time.monotonic()

    def clear(self) -> Watchdog:
        """Create the folder of heartbeats, and remove the files of an earlier start."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        write_request(self.folder, "")
        return self

    def set_pids(self, pids: Mapping[int, int]) -> None:
        """Set the process ids of the watched ranks on this machine."""
        for rank, pid in pids.items():
            self._states[rank].pid = pid

    def check_progress(self, ended: Collection[int] = (), *, stopping: bool = False) -> Hang | None:
        """Return a hang of the watched ranks that have not ended, or None. To be called frequently."""
        now = time.monotonic()
        if now - self._last_check < self._interval:
            return None
        elapsed, self._last_check = min(now - self._last_check, 2 * self._interval), now
        self._read_beats(elapsed)
        if stopping and not self._stopping:
            for state in self._states.values():
                state.waited_before_stop = state.seconds_in_phase
        self._stopping = stopping
        if self._limits.hang_seconds is None and not stopping:
            return None
        suspects = self._find_suspects(ended, stopping=stopping)
        return self._find_hang(suspects, ended, stopping=stopping) if suspects else None

    def _read_beats(self, elapsed: float) -> None:
        beats = read_beats(self.folder, self._states.keys())
        for rank, state in self._states.items():
            beat = newer_beat(beats.get(rank), state.beat)
            same_beat = beat is None or (state.beat is not None and beat.count == state.beat.count)
            same_phase = beat is None or beat.position == state.position
            state.seconds_silent = state.seconds_silent + elapsed if same_beat else 0.0
            state.seconds_in_phase = state.seconds_in_phase + elapsed if same_phase else 0.0
            state.waited_before_stop = state.waited_before_stop if same_phase else 0.0
            state.beat = beat

    def _find_suspects(self, ended: Collection[int], *, stopping: bool) -> list[int]:
        alive = {rank: state for rank, state in self._states.items() if rank not in ended}
        if self._is_rank:
            alive = {rank: state for rank, state in alive.items() if state.phase != "ended"}
        return self._limits.find_suspects(alive, stopping=stopping) if alive else []

    def _find_hang(self, suspects: list[int], ended: Collection[int], *, stopping: bool) -> Hang | None:
        """Collect stacks and identify the rank that hangs, unless there is progress in the meantime."""
        self._request_stacks([rank for rank in self._states if rank not in ended])
        self._read_beats(0.0)
        if self._find_suspects(ended, stopping=stopping) != suspects:
            write_request(self.folder, "")
            return None
        stacks = {rank: self._read_stack(rank) for rank in suspects}
        rank, note = find_hanging_rank(stacks)
        state = self._states[rank]
        seconds = max(state.seconds_silent if self._limits.misses_beats(state) else 0.0, state.seconds_in_phase)
        is_slow_start = stopping and self._limits.is_slow_start(state)
        event = HangEvent(
            rank=rank,
            phase=state.phase,
            step=state.beat.step if state.beat else 0,
            seconds=round(seconds, 3),
            problem=(
                f"rank {rank} hangs: for {seconds:,.0f} s it has been {state.describe_phase()}"
                f"{self._describe_state(state)}{note}."
            ),
            stack="" if state.halted else stacks[rank],
            node=self._find_node(_find_busy_ranks(stacks) or suspects),
        )
        return Hang(event, self.folder, is_slow_start=is_slow_start)

    def _find_node(self, ranks: Collection[int]) -> str | None:
        """Return the node of all these ranks, or None if there are several nodes or one is unknown."""
        beats = [self._states[rank].beat for rank in ranks]
        nodes = {beat.host if beat else None for beat in beats}
        return nodes.pop() if len(nodes) == 1 else None

    def _describe_state(self, state: RankState) -> str:
        if state.halted:
            return f", and its process is stopped ({STOPPED_STATE})"
        if readers := state.halted_readers:
            return f", and its data readers are stopped ({STOPPED_STATE}): process {', '.join(map(str, readers))}"
        if self._limits.misses_beats(state):
            return ", and it sends no heartbeats: it holds the interpreter lock, or its node does not respond"
        return ""

    def _request_stacks(self, ranks: Collection[int]) -> None:
        answering = [rank for rank in ranks if not self._limits.misses_beats(self._states[rank])]
        before = {rank: self._read_dump_end(rank)[0] for rank in answering}
        write_request(self.folder, STACKS)
        deadline, pause = time.monotonic() + 2 * self._interval + ANSWER_SECONDS, min(0.1, self._interval)
        while answering and time.monotonic() < deadline:
            time.sleep(pause)
            # With a thousand ranks, a poll opens a thousand files on a shared disk.
            pause = min(1.5 * pause, MAX_POLL_SECONDS)
            ends = {rank: self._read_dump_end(rank) for rank in answering}
            answering = [rank for rank, (size, end) in ends.items() if size == before[rank] or end != END]

    def _read_dump_end(self, rank: int) -> tuple[int, bytes]:
        """Return size and last bytes of a stack dump. The file is opened, because network file systems otherwise return
        old data."""
        try:
            with stacks_file(self.folder, rank).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - len(END)))
                return size, file.read()
        except OSError:
            return 0, b""

    def _read_stack(self, rank: int) -> str:
        """Return the stack of a rank's main thread from the newest dump."""
        beat = self._states[rank].beat
        if beat is None:
            return ""
        try:
            text = stacks_file(self.folder, rank).read_bytes().decode(errors="replace")
        except OSError:
            return ""
        # Format: `Thread 0x00007f... [name] (most recent call first):`, then one line per frame.
        parts = re.split(r"^(?:Current thread|Thread) (0x[0-9a-f]+)[^\n]*\n", text, flags=re.MULTILINE)
        stacks = [text for number, text in zip(parts[1::2], parts[2::2], strict=True) if int(number, 16) == beat.thread]
        frames = [line for line in stacks[-1].splitlines() if line.startswith("  ")] if stacks else []
        return "\n".join(frames[:STACK_LINES])


def newer_beat(read: Beat | None, known: Beat | None) -> Beat | None:
    """Return the newer heartbeat of a rank. If two machines write to a file, one may overwrite the other's record with
    an old one."""
    if read is None or known is None:
        return read or known
    return max(known, read, key=lambda beat: (beat.count, beat.position))


def _find_busy_ranks(stacks: Mapping[int, str]) -> list[int]:
    """Return the ranks that do not wait for others."""
    return [
        rank
        for rank, stack in stacks.items()
        if not any(WAITING.search(frame) for frame in stack.splitlines()[:WAITING_FRAMES])
    ]


def find_hanging_rank(stacks: Mapping[int, str]) -> tuple[int, str]:
    """Return the rank that hangs, the lowest that does not wait for others, and a message about the remaining ranks."""
    busy = _find_busy_ranks(stacks)
    if len(stacks) > 1 and not busy:
        return min(stacks), f"; all {len(stacks):,} remaining ranks ({format_ranks(stacks)}) wait for each other"
    rank, *other_ranks = sorted(busy or stacks)
    return rank, f"; the same holds for rank {format_ranks(other_ranks)}" if other_ranks else ""


def format_ranks(ranks: Iterable[int]) -> str:
    """Format ranks as spans: `0, 1, 4-1023`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [
        f"{first}-{last}" if last > first + 1 else ", ".join(map(str, sorted({first, last}))) for first, last in spans
    ]
    num_left = sum(last - first + 1 for first, last in spans[SPANS:])
    return ", ".join(texts[:SPANS]) + (f" and {num_left:,} more" if num_left else "")

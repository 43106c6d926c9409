"""Heartbeats: each rank writes its current phase for watchdogs; a few ranks share a file. Does not import torch."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from megaptm.errors import EXIT_CONTINUE
from megaptm.node import node_name
from megaptm.storage import safe_open

VARIABLE = "MEGAPTM_HEARTBEATS"
"""Environment variable with the folder of heartbeats that a launcher watches, set for its ranks."""
HANG_SECONDS = 300.0
"""Default of `train.hang_seconds`: seconds without progress after which a run counts as hanging."""
HEARTBEATS = "heartbeats"
"""Folder of heartbeats in the run folder, with a subfolder for each start of the run."""
REQUEST = "request"
"""File with the watchdog's request to all ranks: empty, or one of the two values below."""
STACKS, EXIT = "stacks", "exit"
END = b"end of the stacks\n"
RECORD_BYTES = 512
"""Bytes of a rank's record in its file. A page holds complete records, so a reader gets either the old or the new
one."""
RANKS_PER_FILE = 8
"""Number of consecutive ranks that write heartbeats to one file: those of a node with eight GPUs, so that a watchdog of
thousands of ranks opens one file per node. With other numbers of GPUs, two nodes may write to one file, or one node to
two."""
MAX_READERS = 8
"""Maximum number of stopped data readers that a heartbeat lists."""
MAX_DURATIONS = 20


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Heartbeat record: the state that a rank reports."""

    host: str
    pid: int
    thread: int
    """Identifier of the main thread, as in a stack dump."""
    count: int
    """Number of heartbeats so far. If it does not change, the process is stopped or never releases the interpreter
    lock."""
    position: int
    """Number of phases that the rank has started. All ranks go through the same phases, so the others wait for the
    lowest number."""
    phase: str
    step: int
    """Number of steps that the rank has done."""
    step_seconds: float
    """Duration of the longest recent step in seconds; 0 before the first."""
    halted_readers: Sequence[int] = ()
    """Process ids of stopped children of a rank that waits for data, which are its data readers."""


BEAT_FIELDS = tuple(field.name for field in fields(Beat))


class Heartbeat:
    """Writer of this rank's heartbeats: each phase when it starts, and regular beats from a thread.

    Starting a phase costs some microseconds, because it is on the path of a step.
    """

    def __init__(self, rank: int, *, hang_seconds: float | None = None) -> None:
        self.rank = rank
        self.interval = beat_seconds(hang_seconds)
        self._dump_after = (hang_seconds or HANG_SECONDS) / 2
        self._phase, self._position, self._steps, self._count = "starting", 0, 0, 0
        self._durations: deque[float] = deque(maxlen=MAX_DURATIONS)
        self._halted_readers: list[int] = []
        self._stop, self._file = threading.Event(), -1
        process = {"host": node_name(), "pid": os.getpid(), "thread": threading.main_thread().ident}
        self._process_fields = json.dumps(process)[1:-1]

    def open(self, folder: Path) -> Heartbeat:
        """Start the thread that writes heartbeats."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stacks = os.fdopen(
            safe_open(stacks_file(folder, self.rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", buffering=0
        )
        self._file = safe_open(beat_file(folder, self.rank), os.O_RDWR | os.O_CREAT)
        self._flush_beat()
        self._beating = threading.Thread(target=self._beat_until_stopped, name="heartbeat", daemon=True)
        self._beating.start()
        return self

    def remove_earlier(self) -> None:
        """Remove the heartbeats of earlier starts of the run. Called only by the owner of the run's lock, so that a
        rejected start does not remove those of a live one."""
        if self._file < 0 or self._folder.parent.name != HEARTBEATS:
            return
        for folder in self._folder.parent.iterdir():
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Report in the heartbeat that this rank ends normally. Has no effect if the thread was never started."""
        self._stop.set()
        if hasattr(self, "_beating"):
            self._beating.join(self.interval)
            self.enter("ended")
            self._flush_beat()
            faulthandler.cancel_dump_traceback_later()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def enter(self, phase: str) -> None:
        """Report in the heartbeat that the next phase starts. All ranks call this at the same points of the program."""
        self._phase = phase
        self._position += 1
        self._write_beat(self._file)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Return a context that reports a phase in the heartbeat, followed by the phase "between"."""
        self.enter(phase)
        start_time = time.monotonic()
        try:
            yield
            if phase == "step":
                self._steps += 1
                self._durations.append(time.monotonic() - start_time)
        finally:  # also on errors, which other ranks may not have, so that positions stay comparable
            self.enter("between")

    def set_step(self, step: int) -> None:
        """Set the number of finished steps in the heartbeat, when a run resumes from a checkpoint or a phase begins.
        The next step may take as long as a first one."""
        self._steps = step
        self._durations.clear()

    def _beat_until_stopped(self) -> None:
        stacks_written = False
        while not self._stop.wait(self.interval):
            self._flush_beat()
            request = _read_request(self._folder)
            if request == EXIT:
                os._exit(EXIT_CONTINUE)
            if request == STACKS and not stacks_written:
                faulthandler.dump_traceback(self._stacks, all_threads=True)
                self._stacks.write(END)
                os.fsync(self._stacks.fileno())
            stacks_written = request == STACKS

    def _flush_beat(self) -> None:
        """Write a heartbeat so that other machines see it: network file systems send data when the file is closed."""
        self._count += 1
        self._halted_readers = halted_children() if self._phase == "data" else []
        # A C thread, postponed by each beat. It dumps the stacks if no Python thread can run because one of them never
        # releases the interpreter lock.
        faulthandler.dump_traceback_later(self._dump_after, file=self._stacks)
        with contextlib.suppress(OSError):
            file = safe_open(beat_file(self._folder, self.rank), os.O_RDWR)
            try:
                self._write_beat(file)
            finally:
                os.close(file)

    def _write_beat(self, file: int) -> None:
        """Write a heartbeat of fixed length in one call, so that a reader gets either the old or the new one."""
        if file < 0:
            return
        longest = max(self._durations, default=0.0)
        readers = self._halted_readers if self._phase == "data" else []
        record = (
            f'{{{self._process_fields}, "count": {self._count}, "position": {self._position}, '
            f'"phase": "{self._phase}", "step": {self._steps}, "step_seconds": {longest}, "halted_readers": {readers}}}'
        )
        content = record.encode().ljust(RECORD_BYTES)
        assert len(content) == RECORD_BYTES  # a longer one would overwrite the next rank's
        with contextlib.suppress(OSError):  # a full disk or an unreachable server; a later beat may succeed
            os.pwrite(file, content, self.rank % RANKS_PER_FILE * RECORD_BYTES)


def beat_seconds(hang_seconds: float | None) -> float:
    """Return the seconds between two heartbeats: short enough to detect a hang, long enough for a disk shared by a
    thousand ranks."""
    return min(5.0, (hang_seconds or HANG_SECONDS) / 20)


def halted_children() -> list[int]:
    """Return the process ids of the first few stopped children of this process."""
    try:
        children = psutil.Process().children()
    except psutil.Error:
        return []
    return [child.pid for child in children if is_process_halted(child.pid)][:MAX_READERS]


def is_process_halted(pid: int) -> bool:
    """Whether a process of this machine is stopped (SIGSTOP, a debugger)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def beat_file(folder: Path, rank: int) -> Path:
    """Return the file with the heartbeats of a rank and its neighbors."""
    first = rank - rank % RANKS_PER_FILE
    return folder / f"ranks-{first}-{first + RANKS_PER_FILE - 1}.beats"


def stacks_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.stacks"


def read_beats(folder: Path, ranks: Collection[int]) -> dict[int, Beat]:
    """Return the last heartbeat of each rank; a rank is absent before its first. Each file is opened once."""
    beats: dict[int, Beat] = {}
    for first in sorted({rank - rank % RANKS_PER_FILE for rank in ranks}):
        try:
            # Reopened each time, because that makes network file systems check for new data.
            with beat_file(folder, first).open("rb") as file:
                content = file.read(RANKS_PER_FILE * RECORD_BYTES)
        except OSError:
            continue
        for rank in range(first, first + RANKS_PER_FILE):
            start = (rank - first) * RECORD_BYTES
            if rank in ranks and (beat := _parse_beat(content[start : start + RECORD_BYTES])) is not None:
                beats[rank] = beat
    return beats


def _parse_beat(record: bytes) -> Beat | None:
    try:
        content = json.loads(record)
        return Beat(**{name: content[name] for name in BEAT_FIELDS})
    except (ValueError, KeyError, TypeError):
        return None


def _read_request(folder: Path) -> str:
    try:
        return (folder / REQUEST).read_text()
    except (OSError, ValueError):
        return ""


def write_request(folder: Path, request: str) -> None:
    """Write the watchdog's request to all ranks: dump stacks, exit, or nothing. Fails silently if the disk is full."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with contextlib.suppress(OSError), os.fdopen(safe_open(folder / REQUEST, flags), "w") as file:
        file.write(request)

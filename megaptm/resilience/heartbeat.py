"""Signs of life: each rank writes into a file of its own what it is doing, for whoever watches the run. No torch."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from megaptm.errors import EXIT_CONTINUE
from megaptm.storage import open_own

VARIABLE = "MEGAPTM_HEARTBEATS"
"""By which a launcher tells its ranks the folder that it watches."""
HANG_SECONDS = 300.0
"""What counts as a hang where `train.hang_seconds` does not say."""
HEARTBEATS = "heartbeats"
"""Name of the folder that has one for each start of the run."""
ORDER = "order"
"""A file in the folder with what the watchdog asks of all ranks: nothing, or one of these."""
STACKS, LEAVE = "stacks", "leave"
END = b"end of the stacks\n"
RECORD_BYTES = 512
MOST_READERS = 8
"""Halted ones that a beat names."""
STEPS_REMEMBERED = 20


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a rank says of itself."""

    host: str
    pid: int
    thread: int
    """Identity of the main thread, as in a dump of stacks."""
    count: int
    """Of beats so far: one that stays the same is of a process that is stopped, or never lets its threads run."""
    position: int
    """Of phases begun so far. All ranks go through the same ones: the lowest is the one that the others wait for."""
    phase: str
    step: int
    """Steps done."""
    step_seconds: float
    """The longest of the last steps; 0 before the first."""
    halted_readers: Sequence[int] = ()
    """Of a rank that waits for data: its children that are halted, which are those that read it."""


class Heartbeat:
    """The phase of this rank, written to its file where it begins, and that the rank lives, by a thread.

    The first costs some microseconds, which is what a step may be held up for.
    """

    def __init__(self, rank: int, *, hang_seconds: float | None = None) -> None:
        self.rank = rank
        self.every = beat_seconds(hang_seconds)
        self._silence = (hang_seconds or HANG_SECONDS) / 2
        self._phase, self._position, self._steps, self._count = "starting", 0, 0, 0
        self._durations: deque[float] = deque(maxlen=STEPS_REMEMBERED)
        self._halted_readers: list[int] = []
        self._stop, self._file = threading.Event(), -1
        who = {"host": socket.gethostname(), "pid": os.getpid(), "thread": threading.main_thread().ident}
        self._who = json.dumps(who)[1:-1]

    def open(self, folder: Path) -> Heartbeat:
        """Begin to beat."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stacks = os.fdopen(
            open_own(stacks_file(folder, self.rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb", buffering=0
        )
        self._file = open_own(beat_file(folder, self.rank), os.O_RDWR | os.O_CREAT)
        self._flush()
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beating.start()
        return self

    def remove_earlier(self) -> None:
        """Those of earlier starts; called by who owns the run, so that a start that is refused takes away nobody's."""
        if self._file < 0 or self._folder.parent.name != HEARTBEATS:
            return
        for folder in self._folder.parent.iterdir():
            if folder != self._folder:
                shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """This rank ends by itself; nobody needs to wait for it. Harmless where it never began to beat."""
        self._stop.set()
        if hasattr(self, "_beating"):
            self._beating.join(self.every)
            self.enter("ended")
            self._flush()
            faulthandler.cancel_dump_traceback_later()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def enter(self, phase: str) -> None:
        """The next phase begins. All ranks call this at the same points of the program."""
        self._phase = phase
        self._position += 1
        self._write(self._file)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A phase, then whatever is between it and the next."""
        self.enter(phase)
        begun = time.monotonic()
        try:
            yield
            if phase == "step":
                self._steps += 1
                self._durations.append(time.monotonic() - begun)
        finally:  # what fails here may go well on others: positions stay comparable
            self.enter("between")

    def continues_from(self, step: int) -> None:
        """So many steps were done before."""
        self._steps = step

    def _beat(self) -> None:
        told = False
        while not self._stop.wait(self.every):
            self._flush()
            order = read_order(self._folder)
            if order == LEAVE:
                os._exit(EXIT_CONTINUE)
            if order == STACKS and not told:
                faulthandler.dump_traceback(self._stacks, all_threads=True)
                self._stacks.write(END)
                os.fsync(self._stacks.fileno())
            told = order == STACKS

    def _flush(self) -> None:
        """Beat, so that others see it: network file systems send what was written when its file is closed."""
        self._count += 1
        self._halted_readers = halted_children() if self._phase == "data" else []
        # A thread of C, held back by each beat: it writes the stacks when no thread of Python can, because one of them
        # never lets go of the interpreter.
        faulthandler.dump_traceback_later(self._silence, file=self._stacks)
        with contextlib.suppress(OSError):
            file = open_own(beat_file(self._folder, self.rank), os.O_RDWR)
            try:
                self._write(file)
            finally:
                os.close(file)

    def _write(self, file: int) -> None:
        """One write of one length: who reads meanwhile finds the one before or this one."""
        if file < 0:
            return
        longest = max(self._durations, default=0.0)
        readers = self._halted_readers if self._phase == "data" else []
        beat = (
            f'{{{self._who}, "count": {self._count}, "position": {self._position}, "phase": "{self._phase}", '
            f'"step": {self._steps}, "step_seconds": {longest}, "halted_readers": {readers}}}'
        )
        with contextlib.suppress(OSError):  # a full disk, a server that is away: the next one may get through
            os.pwrite(file, beat.ljust(RECORD_BYTES).encode(), 0)


def beat_seconds(hang_seconds: float | None) -> float:
    """Seconds between two beats: few enough to tell a hang, many enough for a disk that a thousand ranks share."""
    return min(5.0, (hang_seconds or HANG_SECONDS) / 20)


def halted_children() -> list[int]:
    """Children of this process that are halted, the first few."""
    try:
        children = psutil.Process().children()
    except psutil.Error:
        return []
    return [child.pid for child in children if is_halted(child.pid)][:MOST_READERS]


def is_halted(pid: int) -> bool:
    """Whether a process of this machine is halted (SIGSTOP, a debugger)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def beat_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"


def stacks_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.stacks"


def read_beat(folder: Path, rank: int) -> Beat | None:
    """The last of a rank; None before its first."""
    try:
        # Opened each time: that is when network file systems ask whether there is anything new.
        found = json.loads(beat_file(folder, rank).read_bytes())
        return Beat(**{one.name: found[one.name] for one in fields(Beat)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_order(folder: Path) -> str:
    try:
        return (folder / ORDER).read_text()
    except (OSError, ValueError):
        return ""


def give_order(folder: Path, order: str) -> None:
    """Ask all ranks for their stacks, or to leave; or nothing any more. In vain where the disk takes no file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with contextlib.suppress(OSError), os.fdopen(open_own(folder / ORDER, flags), "w") as file:
        file.write(order)

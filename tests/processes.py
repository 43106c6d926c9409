"""Looking at processes that may end while they are looked at: psutil raises then, or calls them zombies."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil


def everybody() -> Iterator[psutil.Process]:
    """All processes. `psutil.process_iter` may give for a number the process that had it when it was last asked."""
    for number in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(number)


def parents_alone(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those of some that none of them has forked: a child looks like its parent until it begins its own program."""
    found, leaders = [*processes], []
    numbers = {process.pid for process in found}
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() not in numbers:
                leaders.append(process)
    return leaders


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; nothing of one that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Its environment; nothing of one that has ended, or is another user's."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def send(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to those of some processes that still live."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def awaits(process: psutil.Process, number: int) -> bool:
    """Whether a signal was sent to a stopped process, which will get it when it goes on."""
    pending = re.search(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(pending and int(pending[1], 16) >> (number - 1) & 1)


def survivors(processes: Iterable[psutil.Process | int], *, seconds: float = 15.0) -> list[psutil.Process]:
    """Those of some processes, or of some pids, that are still alive some time later."""
    known = []
    for process in processes:
        try:
            known.append(psutil.Process(process) if isinstance(process, int) else process)
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(known, timeout=seconds)
    return [process for process in alive if is_alive(process)]

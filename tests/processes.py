"""Inspection of processes that may end at any time; psutil then raises, or calls them zombies."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

RAY_BESIDE_OTHERS = {"RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
"""Environment with which other work on this machine does not end or starve the workers of Ray. By default they have a
low priority, and are killed if all programs together use most of the memory."""


def everybody() -> Iterator[psutil.Process]:
    """Return all processes. `psutil.process_iter` may return an earlier process with the same pid."""
    for number in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(number)


def parents_alone(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that no other of them has forked: a child looks like its parent until it runs its own
    program."""
    parents, leaders = [*processes], []
    numbers = {process.pid for process in parents}
    for process in parents:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() not in numbers:
                leaders.append(process)
    return leaders


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line; empty if the process has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment; empty if the process has ended or belongs to another user."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_stopped(process: psutil.Process) -> bool:
    """Whether a process was stopped by a signal."""
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def send(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to those processes that are alive."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def awaits(process: psutil.Process, number: int) -> bool:
    """Whether a signal is pending for a stopped process, which receives it when it continues."""
    pending = re.search(r"^ShdPnd:\s*(\w+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return bool(pending and int(pending[1], 16) >> (number - 1) & 1)


def survivors(processes: Iterable[psutil.Process | int], *, seconds: float = 15.0) -> list[psutil.Process]:
    """Return the processes or pids that are still alive after some seconds."""
    known = []
    for process in processes:
        try:
            known.append(psutil.Process(process) if isinstance(process, int) else process)
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(known, timeout=seconds)
    return [process for process in alive if is_alive(process)]

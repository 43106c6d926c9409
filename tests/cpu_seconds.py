"""CPU seconds per test file: `pytest --cpu-seconds FILE` writes a table of files and one of single tests, as JSON.

Wall time depends on the load of the machine; CPU seconds hardly do. They include all processes that a test starts:
ranks of the fork server, commands, and daemons that leave the process tree. Only Linux has the necessary counters.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

COLLECTION = "collection"
"""Key of the CPU seconds for imports and collection, of all workers."""
MIN_WALL_SECONDS = 0.1
"""A shorter test is measured together with the next one of its file: reading /proc takes milliseconds."""

MARK = "MEGAPTM_CPU_SECONDS_OF"
"""Environment variable by which daemons of this process are recognized."""
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class Clock:
    """CPU seconds of this process and of all processes that it has started."""

    def __init__(self) -> None:
        os.environ[MARK] = f"{os.getpid()}"
        self._mark = f"{MARK}={os.getpid()}".encode()
        self._daemons: dict[tuple[int, int], float] = {}
        """Seconds of processes outside the process tree, by pid and start time. They are kept after the end: no parent
        of this process tree adds them to its own."""
        self._strangers: set[tuple[int, int]] = set()

    def seconds(self) -> float:
        processes = {process.pid: process for process in read_processes()}
        children: dict[int, list[int]] = {}
        for process in processes.values():
            children.setdefault(process.parent, []).append(process.pid)
        for process in processes.values():
            if process.parent == 1 and process.key not in self._strangers | {*self._daemons}:
                if self._is_marked(process.pid):
                    self._daemons[process.key] = 0.0
                else:
                    self._strangers.add(process.key)
        for pid, start in self._daemons:
            if pid in processes and processes[pid].start == start:
                self._daemons[pid, start] = sum_tree(pid, processes, children)
        return sum_tree(os.getpid(), processes, children) + sum(self._daemons.values())

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False


class Process:
    """A line of /proc/PID/stat. `seconds` include the children that have ended and were waited for."""

    def __init__(self, line: str) -> None:
        fields = line[line.rindex(")") + 2 :].split()
        self.pid = int(line.partition(" ")[0])
        self.parent, self.start = int(fields[1]), int(fields[19])
        self.seconds = sum(map(int, fields[11:15])) / TICKS
        self.key = self.pid, self.start


def read_processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                yield Process(Path(f"/proc/{name}/stat").read_text())
            except OSError:  # the process has ended
                continue


def sum_tree(pid: int, processes: dict[int, Process], children: dict[int, list[int]]) -> float:
    return processes[pid].seconds + sum(sum_tree(child, processes, children) for child in children.get(pid, ()))


class Recorder:
    """Plugin of pytest that adds `cpu_seconds` to reports, and writes the sums where no worker sends them elsewhere."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        """None in a worker, whose reports go to the controller."""
        self.clock = Clock()
        self.before = self.clock.seconds()
        self.files: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def lap(self) -> float:
        now = self.clock.seconds()
        lap, self.before = max(now - self.before, 0.0), now
        return lap

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", {})
        output[COLLECTION] = self.lap()
        if self.file is not None:
            self.files[COLLECTION] += output[COLLECTION]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        self.is_last = nextitem is None or nextitem.path != item.path
        self.wall = 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[Any]) -> Any:
        report = yield
        self.wall += call.duration
        if call.when == "teardown" and (self.is_last or self.wall > MIN_WALL_SECONDS):
            report.cpu_seconds = self.lap()
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self.file is not None and (seconds := getattr(report, "cpu_seconds", 0.0)):
            self.files[report.nodeid.partition("::")[0]] += seconds
            self.tests[report.nodeid] += seconds

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self.files[COLLECTION] += getattr(node, "workeroutput", {}).get(COLLECTION, 0.0)

    def pytest_sessionfinish(self) -> None:
        if self.file is not None:
            tables = {"files": self.files, "tests": self.tests}
            rounded = {
                name: {key: round(took, 2) for key, took in table.most_common()} for name, table in tables.items()
            }
            self.file.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", metavar="FILE", type=Path, help="write CPU seconds per test file as JSON")


def register(config: pytest.Config) -> None:
    if (file := config.getoption("--cpu-seconds")) is not None:
        config.pluginmanager.register(Recorder(None if hasattr(config, "workerinput") else file), "cpu-seconds")

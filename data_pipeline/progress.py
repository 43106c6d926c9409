"""Progress bars of a build, and the wall time of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from megaptm.console import Console

SECONDS_PER_LINE = 60


class StageProgress(AbstractContextManager):
    """One progress bar per stage; a line per stage and minute where there is no terminal, such as a job's log.

    Without a console, stages are only timed.
    """

    def __init__(self, console: Console | None):
        self.seconds: dict[str, float] = {}
        """Wall time of each stage in seconds."""
        columns = (SpinnerColumn(), TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn())
        has_bars = console is not None and console.is_terminal
        self._bars = Progress(*columns, TimeElapsedColumn(), console=console, disable=not has_bars)
        self._log = None if has_bars else console

    def __enter__(self) -> StageProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def stage(self, name: str, jobs: int = 1) -> Iterator[Callable[[], None]]:
        """Time a stage of a corpus build with this number of jobs; yields the function to call after each."""
        bar = self._bars.add_task(name, total=jobs)
        start = last_line = time.perf_counter()
        done = 0

        def advance() -> None:
            nonlocal done, last_line
            done += 1
            self._bars.advance(bar)
            if time.perf_counter() - last_line >= SECONDS_PER_LINE:
                last_line = time.perf_counter()
                self._print_to_log(f"  {name}: {done:,} of {jobs:,}, {last_line - start:,.0f} s")

        self._print_to_log(f"{name} ...")
        yield advance
        self.seconds[name] = round(time.perf_counter() - start, 3)
        self._bars.update(bar, completed=jobs)
        self._print_to_log(f"  done in {self.seconds[name]:,.1f} s")

    def _print_to_log(self, line: str) -> None:
        if self._log is not None:
            self._log.print(line, highlight=False)
            self._log.file.flush()

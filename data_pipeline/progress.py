"""Progress bars of a build, and the wall time of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from megaptm.console import Console


class Stages(AbstractContextManager):
    """One progress bar per stage. Without a console, stages are only timed."""

    def __init__(self, console: Console | None):
        self.seconds: dict[str, float] = {}
        """Stage -> wall time in seconds."""
        columns = (SpinnerColumn(), TextColumn("{task.description:<18}"), BarColumn(), MofNCompleteColumn())
        self._bars = Progress(*columns, TimeElapsedColumn(), console=console, disable=console is None)

    def __enter__(self) -> Stages:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextmanager
    def stage(self, name: str, jobs: int = 1) -> Iterator[Callable[[], None]]:
        """Time a stage of `jobs` jobs; yields the function to call after each."""
        bar = self._bars.add_task(name, total=jobs)
        start = time.perf_counter()
        yield lambda: self._bars.advance(bar)
        self.seconds[name] = round(time.perf_counter() - start, 3)
        self._bars.update(bar, completed=jobs)

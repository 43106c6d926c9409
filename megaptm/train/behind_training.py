"""Work on committed checkpoints behind training, in a thread of rank 0 whose failures do not end the run."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection

from megaptm.resilience.events import Events, HubExportEvent, UploadEvent

POLL_SECONDS = 0.1

log = logging.getLogger(__name__)


class BehindTraining:
    """Thread that does one kind of work for one checkpoint after the other, which must not be removed meanwhile."""

    def __init__(
        self,
        name: str,
        work: Callable[[int], object],
        event: type[HubExportEvent | UploadEvent],
        events: Events,
        *,
        is_due: Callable[[int, int], bool] = lambda previous, step: True,
        ends: Collection[int] = (0,),
    ) -> None:
        """Start the thread.

        - `name`: what is made of a checkpoint, for the warning of a failure.
        - `work`: makes it of the checkpoint of a step; any exception is its failure.
        - `event`: event that is written afterwards.
        - `is_due`: whether it is made of a step, given the step of the checkpoint before.
        - `ends`: exit codes of the run before which it waits for the thread.
        """
        self.name, self.work, self.event, self.events = name, work, event, events
        self.is_due, self.ends = is_due, ends
        self.steps: set[int] = set()
        """Steps of the checkpoints that are worked on or wait for it."""
        self._queue: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._work_on_all, name=name, daemon=True).start()

    def begin(self, step: int) -> None:
        """Work on a committed checkpoint when the earlier one is done. A checkpoint that still waits is left out."""
        with contextlib.suppress(queue.Empty):
            self._end(self._queue.get_nowait(), 0.0, f"it was not begun before step {step} was saved")
        self.steps.add(step)
        self._queue.put(step)

    def wait(self, seconds: float) -> bool:
        """Wait until the work on all checkpoints is done, at most some seconds; return whether it is."""
        deadline = time.monotonic() + seconds
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return not self._queue.unfinished_tasks

    def _work_on_all(self) -> None:
        while True:
            step = self._queue.get()
            start_time, problem = time.monotonic(), None
            try:
                self.work(step)
            except Exception as error:  # whatever it is, training goes on
                problem = str(error) or repr(error)
            self._end(step, time.monotonic() - start_time, problem)

    def _end(self, step: int, seconds: float, problem: str | None) -> None:
        self.steps.discard(step)
        if problem is not None:
            log.warning("the %s of step %d failed: %s", self.name, step, problem.removesuffix("."))
        self.events.write(self.event(step=step, seconds=round(seconds, 3), problem=problem))
        self._queue.task_done()

"""Copies of committed checkpoints in the background, by a thread of rank 0 whose failures do not end the run."""

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


class CopyThread:
    """Thread that copies one checkpoint after the other. A checkpoint must not be removed while it is copied."""

    def __init__(
        self,
        name: str,
        copy: Callable[[int], object],
        event: type[HubExportEvent | UploadEvent],
        events: Events,
        *,
        is_due: Callable[[int, int], bool] = lambda previous, step: True,
        lacks_last: Callable[[int], bool] = lambda step: False,
        awaited_codes: Collection[int] = (0,),
    ) -> None:
        """Start the thread.

        - `name`: name of the copies in warnings.
        - `copy`: function that copies the checkpoint of a step. Any exception is logged as a failed copy.
        - `event`: event that is written after each copy.
        - `is_due`: function from the steps of the previous and this checkpoint to whether this one is copied.
        - `lacks_last`: function from the last step of a complete run to whether its checkpoint still has to be copied.
        - `awaited_codes`: exit codes for which the end of the run waits for the copies.
        """
        self.name, self.copy, self.event, self.events = name, copy, event, events
        self.is_due, self.lacks_last, self.awaited_codes = is_due, lacks_last, awaited_codes
        self.steps: set[int] = set()
        """Steps of the checkpoints that are being copied or wait for it."""
        self._newest: int | None = None
        """Step of the newest checkpoint of which a copy was started."""
        self._queue: queue.Queue[int] = queue.Queue()
        threading.Thread(target=self._copy_all, name=name, daemon=True).start()

    def start(self, step: int) -> None:
        """Copy a committed checkpoint when the previous copy is done. A checkpoint that still waits is skipped."""
        with contextlib.suppress(queue.Empty):
            self._end(self._queue.get_nowait(), 0.0, f"it had not started when step {step} was saved")
        self._newest = step
        self.steps.add(step)
        self._queue.put(step)

    def is_missing(self, step: int) -> bool:
        """Whether no copy of the last checkpoint of a complete run, of this step, was made or tried."""
        return step != self._newest and self.lacks_last(step)

    def wait(self, seconds: float) -> bool:
        """Wait until all checkpoints are copied, at most some seconds; return whether they are."""
        deadline = time.monotonic() + seconds
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return not self._queue.unfinished_tasks

    def _copy_all(self) -> None:
        while True:
            step = self._queue.get()
            start_time, problem = time.monotonic(), None
            try:
                self.copy(step)
            except Exception as error:  # whatever it is, training continues
                problem = str(error) or repr(error)
            self._end(step, time.monotonic() - start_time, problem)

    def _end(self, step: int, seconds: float, problem: str | None) -> None:
        self.steps.discard(step)
        if problem is not None:
            log.warning("the %s of step %d failed: %s", self.name, step, problem.removesuffix("."))
        self.events.write(self.event(step=step, seconds=round(seconds, 3), problem=problem))
        self._queue.task_done()

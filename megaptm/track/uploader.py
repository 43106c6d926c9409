"""The thread that carries the journal to MLflow, from where it stopped the last time, as often as it takes."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

from megaptm.credentials import in_brief
from megaptm.track.address import default_uri
from megaptm.track.journal import FILE, UploadState, parsed

logger = logging.getLogger(__name__)

# Read at once; well under MLflow's limit of 1,000 metrics a call even when a step has ten.
BATCH_LINES = 80
# So that fast steps travel together.
BETWEEN_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0


class Uploader(threading.Thread):
    """Sends what is new, remembers how far it came, and tries again later when the server does not answer."""

    def __init__(self, run: Path, *, uri: str | None, experiment: str, retry_seconds: float) -> None:
        super().__init__(daemon=True, name="mlflow-uploader")
        self._run, self._retry_seconds = run, retry_seconds
        self._state = UploadState.read(run, uri=uri, experiment=experiment)
        self._closing = False
        self.wake = threading.Event()
        """Set when there is something new."""

    def finish(self, seconds: float) -> int:
        """Send the rest; returns the records left after `seconds` or the first failure."""
        self._closing = True
        self.wake.set()
        self.join(timeout=seconds)
        with (self._run / FILE).open("rb") as journal:
            journal.seek(self._state.shipped)
            return sum(1 for _ in journal)

    def run(self) -> None:
        from megaptm.track.store import (
            MlflowRun,  # imports MLflow: seconds, which are this thread's and not the trainer's
        )

        store: MlflowRun | None = None
        pause, complained = self._retry_seconds, False
        while True:
            self.wake.clear()
            closing = self._closing  # after the line above: `finish` sets this first, so that its call is not missed
            try:
                if store is None:
                    store = MlflowRun(self._run, self._state)
                self._send_new(store)
                if closing:
                    return
                pause = self._retry_seconds
                self._rest(BETWEEN_SECONDS)
                self.wake.wait()
            except Exception as error:  # whatever a server or a library comes up with must not reach the training
                if not complained:
                    complained = True
                    logger.warning(
                        "MLflow at %s: %s; training goes on", self._state.uri or default_uri(self._run), in_brief(error)
                    )
                if closing:
                    return
                self._rest(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)

    def _send_new(self, store: Any) -> None:
        while True:
            with (self._run / FILE).open("rb") as journal:
                journal.seek(self._state.shipped)
                lines = [line for line in (journal.readline() for _ in range(BATCH_LINES)) if line.endswith(b"\n")]
            if not lines:
                return
            store.send([record for line in lines if (record := parsed(line)) is not None])
            self._state.shipped += sum(map(len, lines))
            self._state.write(self._run)

    def _rest(self, seconds: float) -> None:
        """Wait, unless the run ends meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._closing and time.monotonic() < deadline:
            time.sleep(0.05)

"""Tracker of the trainer, and the thread that sends the journal to MLflow.

The tracker never waits for a network, server or database. The thread retries, and continues where it last stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from megaptm.credentials import brief_message, refuse_credentials
from megaptm.errors import UserError
from megaptm.track.journal import FILE, Journal, UploadState, parse_record
from megaptm.track.uri import default_uri

logger = logging.getLogger(__name__)

# Lines per batch: well below MLflow's limit of 1,000 metrics per call, even with ten metrics per step.
BATCH_LINES = 80
# Seconds between batches, so that several fast steps are sent together.
BATCH_PAUSE_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class Tracker:
    """Tracker of one run's metrics, on rank 0. A run folder has one MLflow run, which restarts continue.

    `uri` is an MLflow tracking URI, by default a database beside the run folder. With `enabled=False`, only the journal
    is written.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        uri: str | None = None,
        experiment: str = "megaptm",
        enabled: bool = True,
        retry_seconds: float = 1.0,
    ) -> None:
        refuse_credentials(uri or "", where="track.uri")
        self._run = Path(run).resolve()
        self._journal = Journal(self._run)
        self._has_warned = False
        self._uploader = None
        if enabled:
            self._uploader = Uploader(self._run, uri=uri, experiment=experiment, retry_seconds=retry_seconds)
            self._uploader.start()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step for MLflow."""
        self._add({"step": step, **metrics})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run for MLflow. If a restart changes one, the new value is in the tag
        `latest.KEY`."""
        self._add({"params": dict(params)})

    def log_artifact(self, path: str | Path) -> None:
        """Record a file in the run folder as an MLflow artifact. Its content at the time of upload is sent."""
        self._add({"artifact": str(Path(path).resolve().relative_to(self._run))})

    def log_status(self, status: str) -> None:
        """Record MLflow's status of the run: RUNNING, FINISHED, FAILED, KILLED, or SCHEDULED if it will be continued.

        MLflow measures the run's duration from the first record to the last status.
        """
        self._add({"status": status})

    def close(self, *, seconds: float = 20.0) -> int:
        """Wait briefly for the upload to MLflow; return the number of records that are still missing there."""
        missing = self._uploader.finish(seconds) if self._uploader is not None else 0
        if missing:
            logger.warning(
                "%s of %s not sent to the tracking server yet; `megaptm report --upload %s` sends them",
                f"{missing:,} record{'s' * (missing != 1)}",
                self._journal.path,
                self._run,
            )
        with contextlib.suppress(OSError):  # reported earlier
            self._journal.close()
        return missing

    def __enter__(self) -> Tracker:
        self.log_status("RUNNING")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log_status("FINISHED" if kind is None else "FAILED")
        self.close()

    def _add(self, record: Mapping[str, Any]) -> None:
        try:
            self._journal.add(record)
        except OSError as error:  # a full disk must not stop training; the line stays in memory
            if not self._has_warned:
                logger.warning(
                    "%s cannot be written (%s): metrics stay in memory until it can", self._journal.path, error
                )
            self._has_warned = True
            return
        if self._uploader is not None:
            self._uploader.wake.set()


def upload(run: Path, *, uri: str | None, experiment: str) -> None:
    """Upload the missing part of a run's journal to MLflow; raise `UserError` if that fails."""
    run = run.resolve()
    refuse_credentials(uri or "", where="track.uri")
    if not (run / FILE).exists():
        raise UserError(f"{run} has no metrics yet: `megaptm train {run}` writes them.")
    try:
        Uploader(run, uri=uri, experiment=experiment).send_once()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{run / FILE} was not sent to MLflow at {uri or default_uri(run)} ({brief_message(error)}): check that it "
            "responds, and run the command again."
        ) from error


class Uploader(threading.Thread):
    """Thread that uploads new records to MLflow, stores its position, and retries if the server does not respond."""

    def __init__(self, run: Path, *, uri: str | None, experiment: str, retry_seconds: float = 1.0) -> None:
        super().__init__(daemon=True, name="mlflow-uploader")
        self._run, self._retry_seconds = run, retry_seconds
        self._state = UploadState.read(run, uri=uri, experiment=experiment)
        self._closing = False
        self.wake = threading.Event()
        """Event that is set when there are new records to upload."""

    def finish(self, seconds: float) -> int:
        """Upload the remaining records to MLflow; return the number left after `seconds` or after the first failure."""
        self._closing = True
        self.wake.set()
        self.join(timeout=seconds)
        with (self._run / FILE).open("rb") as journal:
            journal.seek(self._state.uploaded_bytes)
            return sum(1 for _ in journal)

    def send_once(self) -> None:
        """Upload the remaining records to MLflow in the calling thread. All errors are raised."""
        from megaptm.track.store import MlflowRun

        self._send_new(MlflowRun(self._run, self._state))

    def run(self) -> None:
        from megaptm.track.store import (
            MlflowRun,  # imports MLflow, which takes seconds of this thread only
        )

        store: MlflowRun | None = None
        pause, has_warned = self._retry_seconds, False
        while True:
            self.wake.clear()
            closing = self._closing  # read after `clear`: `finish` sets this first, so its wake-up is not missed
            try:
                if store is None:
                    store = MlflowRun(self._run, self._state)
                self._send_new(store)
                if closing:
                    return
                pause = self._retry_seconds
                self._sleep(BATCH_PAUSE_SECONDS)
                self.wake.wait()
            except Exception as error:  # no error of a server or a library may reach training
                store = None  # the run may have been deleted; opening it again creates a new one
                if not has_warned:
                    has_warned = True
                    logger.warning(
                        "MLflow at %s: %s; training continues",
                        self._state.uri or default_uri(self._run),
                        str(error).removesuffix(".") if isinstance(error, UserError) else brief_message(error),
                    )
                if closing:
                    return
                self._sleep(pause)
                pause = min(2 * pause, MAX_RETRY_SECONDS)

    def _send_new(self, store: Any) -> None:
        while True:
            with (self._run / FILE).open("rb") as journal:
                if journal.seek(0, os.SEEK_END) < self._state.uploaded_bytes:  # the journal was replaced
                    self._state.uploaded_bytes = 0
                journal.seek(self._state.uploaded_bytes)
                lines = [line for line in (journal.readline() for _ in range(BATCH_LINES)) if line.endswith(b"\n")]
            if not lines:
                return
            store.send([record for line in lines if (record := parse_record(line)) is not None])
            self._state.uploaded_bytes += sum(map(len, lines))
            self._state.write(self._run)

    def _sleep(self, seconds: float) -> None:
        """Wait between uploads, unless the run ends in the meantime."""
        deadline = time.monotonic() + seconds
        while not self._closing and time.monotonic() < deadline:
            time.sleep(0.05)

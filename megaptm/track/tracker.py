"""Tracker of a run's metrics, and the threads that send the journal to MLflow and other loggers.

The tracker never waits for a network, server or database. The thread retries, and continues where it last stopped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from megaptm.credentials import brief_message, refuse_credentials
from megaptm.errors import UserError
from megaptm.track.journal import FILE, Journal, UploadState, parse_record
from megaptm.track.loggers import LOGGERS, LoggerRun
from megaptm.track.uri import default_tracking_uri

logger = logging.getLogger(__name__)

# Lines per batch: well below MLflow's limit of 1,000 metrics per call, even with ten metrics per step.
BATCH_LINES = 80
# Seconds between batches, so that several fast steps are sent together.
BATCH_PAUSE_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0


class Tracker:
    """Tracker of one run's metrics, on rank 0. A run folder has one run in each logger, which restarts continue.

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
        loggers: Sequence[str] = ("mlflow",),
        retry_seconds: float = 1.0,
    ) -> None:
        refuse_credentials(uri or "", where="track.uri")
        self._run = Path(run).resolve()
        self._journal = Journal(self._run)
        self._has_warned = False
        self._uploaders = [
            Uploader(self._run, logger, uri=uri, experiment=experiment, retry_seconds=retry_seconds)
            for logger in (loggers if enabled else ())
        ]
        for uploader in self._uploaders:
            uploader.start()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one step."""
        self._add_record({"step": step, **metrics})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record parameters of the run. If a restart changes one, MLflow has the new value in the tag
        `latest.KEY`."""
        self._add_record({"params": dict(params)})

    def log_artifact(self, path: str | Path) -> None:
        """Record a file in the run folder as an MLflow artifact. Its content at the time of upload is sent."""
        self._add_record({"artifact": str(Path(path).resolve().relative_to(self._run))})

    def log_status(self, status: str) -> None:
        """Record MLflow's status of the run: RUNNING, FINISHED, FAILED, KILLED, or SCHEDULED if it will be continued.

        MLflow measures the run's duration from the first record to the last status.
        """
        self._add_record({"status": status})

    def close(self, *, seconds: float = 20.0) -> int:
        """Wait briefly for the uploads; return the number of records that are still missing in some logger."""
        deadline = time.monotonic() + seconds
        for uploader in self._uploaders:
            uploader.begin_to_finish()
        missing = 0
        for uploader in self._uploaders:
            own = uploader.finish(max(0.0, deadline - time.monotonic()))
            missing = max(missing, own)
            if own:
                logger.warning(
                    "%s of %s not sent to %s yet; `megaptm report --upload %s` sends them",
                    f"{own:,} record{'s' * (own != 1)}",
                    self._journal.path,
                    uploader.title,
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

    def _add_record(self, record: Mapping[str, Any]) -> None:
        try:
            self._journal.add(record)
        except OSError as error:  # a full disk must not stop training; the line stays in memory
            if not self._has_warned:
                logger.warning(
                    "%s cannot be written (%s): metrics stay in memory until it can", self._journal.path, error
                )
            self._has_warned = True
            return
        for uploader in self._uploaders:
            uploader.wake.set()


def upload_metrics(run: Path, *, uri: str | None, experiment: str, loggers: Sequence[str] = ("mlflow",)) -> None:
    """Send the missing part of a run's journal to its loggers; raise `UserError` if that fails."""
    run = run.resolve()
    refuse_credentials(uri or "", where="track.uri")
    if not (run / FILE).exists():
        raise UserError(f"{run} has no metrics yet: `megaptm train {run}` writes them.")
    for uploader in [Uploader(run, logger, uri=uri, experiment=experiment) for logger in loggers]:
        try:
            uploader.send_once()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{run / FILE} was not sent to {uploader.title} ({brief_message(error)}): check that it responds, and "
                "run the command again."
            ) from error


class Uploader(threading.Thread):
    """Thread that sends new records to a logger, stores its position, and retries if the server does not respond."""

    def __init__(self, run: Path, logger: str, *, uri: str | None, experiment: str, retry_seconds: float = 1.0) -> None:
        super().__init__(daemon=True, name=f"{logger}-uploader")
        self._run, self._retry_seconds = run, retry_seconds
        self._logger = LOGGERS[logger]
        is_mlflow = logger == "mlflow"
        self._state = UploadState.read(run, logger=logger, uri=uri if is_mlflow else None, experiment=experiment)
        self.title = f"{self._logger.title} at {uri or default_tracking_uri(run)}" if is_mlflow else self._logger.title
        self._closing = False
        self.wake = threading.Event()
        """Event that is set when there are new records to upload."""

    def begin_to_finish(self) -> None:
        """Send the remaining records without pauses, then end the thread."""
        self._closing = True
        self.wake.set()

    def finish(self, seconds: float) -> int:
        """Wait for the end of the thread; return the number of records left after `seconds` or the first failure."""
        self.join(timeout=seconds)
        with (self._run / FILE).open("rb") as journal:
            journal.seek(self._state.uploaded_bytes)
            return sum(1 for _ in journal)

    def send_once(self) -> None:
        """Send the remaining records in the calling thread. All errors are raised."""
        store = self._logger.open(self._run, self._state)
        self._send_new(store)
        store.close()

    def run(self) -> None:
        store: LoggerRun | None = None
        pause = self._retry_seconds
        warned_at: int | None = None
        """Bytes that were sent before the last warning: a failure after more was sent is a new outage."""
        while True:
            self.wake.clear()
            closing = self._closing  # read after `clear`: it is set before the wake-up, which is not missed
            try:
                if store is None:
                    store = self._logger.open(self._run, self._state)  # imports it: seconds of this thread only
                self._send_new(store)
                if closing:
                    store.close()
                    return
                pause = self._retry_seconds
                self._sleep_between_uploads(BATCH_PAUSE_SECONDS)
                self.wake.wait()
            except Exception as error:  # no error of a server or a library may reach training
                store = None  # the run may have been deleted; opening it again creates a new one
                if self._state.uploaded_bytes != warned_at:
                    warned_at = self._state.uploaded_bytes
                    logger.warning(
                        "%s: %s; training continues",
                        self.title,
                        (str(error) if isinstance(error, UserError) else brief_message(error)).removesuffix("."),
                    )
                if closing:
                    return
                self._sleep_between_uploads(pause)
                pause = min(2 * pause, MAX_RETRY_SECONDS)

    def _send_new(self, store: LoggerRun) -> None:
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

    def _sleep_between_uploads(self, seconds: float) -> None:
        """Wait between uploads, unless the run ends in the meantime."""
        deadline = time.monotonic() + seconds
        while not self._closing and time.monotonic() < deadline:
            time.sleep(0.05)

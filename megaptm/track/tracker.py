"""What the trainer talks to. Nothing here waits for a network, a server or a database."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from megaptm.credentials import refuse_credentials
from megaptm.track.journal import Journal
from megaptm.track.uploader import Uploader

logger = logging.getLogger(__name__)


class Tracker:
    """Rank 0's reporter of one run. One MLflow run per run folder, continued by every restart.

    `uri` is an MLflow tracking address; absent, a database beside the run folder. `enabled=False` keeps
    only the journal.
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
        self._complained = False
        self._shipper = None
        if enabled:
            self._shipper = Uploader(self._run, uri=uri, experiment=experiment, retry_seconds=retry_seconds)
            self._shipper.start()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Numbers of one step."""
        self._add({"step": step, **metrics})

    def log_params(self, params: Mapping[str, Any]) -> None:
        """What does not change during the run. What a restart changes after all is kept in tags named `latest.KEY`."""
        self._add({"params": dict(params)})

    def log_artifact(self, path: str | Path) -> None:
        """A file in the run folder, sent as it is when its turn comes."""
        self._add({"artifact": str(Path(path).resolve().relative_to(self._run))})

    def log_status(self, status: str) -> None:
        """MLflow's word for what training does from now on: RUNNING, FINISHED, FAILED, KILLED, or SCHEDULED where it
        will be continued. MLflow counts the time of the run from the first record to the last of these."""
        self._add({"status": status})

    def close(self, *, seconds: float = 20.0) -> int:
        """Wait, but not for long, until MLflow has everything; returns how many records it still lacks."""
        left = self._shipper.finish(seconds) if self._shipper is not None else 0
        if left:
            logger.warning(
                "%d records of %s have not reached the tracking server; `megaptm report --upload %s` sends them later",
                left,
                self._journal.path,
                self._run,
            )
        self._journal.close()
        return left

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
        except OSError as error:  # a full disk: the checkpoint will say so; a number that is missed stops no run
            if not self._complained:
                logger.warning("metrics are not recorded: %s: %s", self._journal.path, error)
            self._complained = True
            return
        if self._shipper is not None:
            self._shipper.wake.set()

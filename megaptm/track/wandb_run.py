"""Weights & Biases run of a run folder, continued by every restart. Only the upload thread imports this module."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# wandb reads this when it is imported. Without it, each start prints its messages between those of training.
os.environ.setdefault("WANDB_SILENT", "true")

import wandb

from megaptm.errors import UserError
from megaptm.storage import refuse_link
from megaptm.track.journal import OTHER_STATE, UploadState

logger = logging.getLogger(__name__)

FOLDER = "wandb"
TIMEOUT_SECONDS = 30.0


class WandbRun:
    """Weights & Biases run. The variables WANDB_MODE, WANDB_API_KEY, WANDB_ENTITY ... apply."""

    def __init__(self, run: Path, state: UploadState) -> None:
        refuse_link(run / FOLDER)
        for settings_file in (run / FOLDER / "settings", Path.cwd() / FOLDER / "settings"):
            # The file may come with a run, and names the server that wandb sends the login to.
            if settings_file.exists():
                raise UserError(
                    f"{settings_file} could send your login to any server: remove it, and set variables such as "
                    "WANDB_BASE_URL instead."
                )
        mode = os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not wandb.login(prompt=False):  # `init` would ask for it on the terminal
            raise UserError("Weights & Biases has no login: run `wandb login`, or set WANDB_MODE=offline.")
        if mode == "offline" and state.uploaded_bytes and not any((run / FOLDER).glob(f"offline-run-*-{state.job}")):
            logger.warning(
                "%s has no files of earlier jobs. If they were removed before `wandb sync`, remove %s: the next start "
                "writes all steps again",
                run / FOLDER,
                run / OTHER_STATE.format("wandb"),
            )
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            init_timeout=TIMEOUT_SECONDS,
            reinit="create_new",
        )
        # The run's id is in `track-wandb.json`, so that a restart continues it.
        self._run = wandb.init(
            project=state.experiment, name=run.name, id=state.job, resume="allow", dir=run, settings=settings
        )
        # A restart repeats steps, which wandb's own counter of steps would reject.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        self._exit_code = 0

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        """Send metrics and parameters of the run to Weights & Biases."""
        for record in records:
            if "params" in record:
                self._run.config.update(record["params"], allow_val_change=True)
            if "step" in record:
                self._run.log({"_timestamp": record["time"], **{k: v for k, v in record.items() if k != "time"}})
            if "status" in record:
                self._exit_code = int(record["status"] == "FAILED")

    def close(self) -> None:
        """Wait until the records are written, or sent."""
        self._run.finish(exit_code=self._exit_code)

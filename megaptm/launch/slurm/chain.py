"""Chain of jobs that follow each other until a run is done."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from megaptm.config import Config
from megaptm.errors import EXIT_CONTINUE
from megaptm.launch.restart_policy import RestartPolicy
from megaptm.launch.slurm.preflight import is_run_finished
from megaptm.launch.slurm.request import checkout_folder
from megaptm.resilience.events import last_saved_step
from megaptm.run.submission import SCRIPT
from megaptm.schedulers.slurm.jobs import follow_slurm_job, slurm_job_fields, submit_slurm_jobs

INTERRUPTED = ("NODE_FAIL", "PREEMPTED", "TIMEOUT")
"""States of Slurm jobs that are not failures of the run."""


class JobChain:
    """Chain of Slurm jobs of one launch. A shared random id identifies them as attempts at the same run."""

    def __init__(self, config: Config) -> None:
        self.run = Path(config.run)
        self._config = config
        self._policy = RestartPolicy(self.run)
        self.waiting: list[str] = []
        """Jobs that have not ended, in order."""
        chain = secrets.token_hex(4)
        self._environment = {
            "MEGAPTM_VENV": sys.prefix,
            **os.environ,
            "MEGAPTM_HOME": str(checkout_folder()),
            "MEGAPTM_CHAIN": chain,
        }

    def submit(self, jobs: int) -> list[str]:
        """Submit `jobs` more Slurm jobs to the chain, each to start after the one before; return their ids."""
        self.waiting = submit_slurm_jobs(self.run / SCRIPT, jobs=jobs, environment=self._environment)
        return list(self.waiting)

    def follow(self, show: Callable[[str], object]) -> bool:
        """Show the output of the chain's Slurm jobs until the last one ends; return whether the run is done.

        If the last job was interrupted with progress but was not requeued, another one is submitted.
        """
        while self.waiting:
            job, before = self.waiting[0], last_saved_step(self.run)
            follow_slurm_job(job, self.run / f"logs/job-{job}.log", show)
            if is_run_finished(self._config):
                return True
            del self.waiting[0]
            progress = last_saved_step(self.run) > before
            if (
                not self.waiting
                and _was_interrupted(job)
                and self._policy.may_restart("interrupted", progress=progress)
            ):
                [next_job] = self.submit(1)
                show(f"The run is not complete and no job is left: submitted job {next_job}.\n")
        return False


def _was_interrupted(job: str) -> bool:
    """Whether a Slurm job was interrupted, saved or lost with its node; not after a failure or scancel."""
    fields = slurm_job_fields(job)
    return fields.get("JobState") in INTERRUPTED or fields.get("ExitCode") == f"{EXIT_CONTINUE}:0"

"""Trains a run: as one of its processes where somebody has started them, else by starting them on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megaptm.config import Config
from megaptm.errors import EXIT_USER_ERROR, UserError, storage_errors_told
from megaptm.launch.local import launch
from megaptm.report.terminal import title
from megaptm.run.corpora import check_corpora
from megaptm.run.folder import (
    discard_unused,
    environment_of,
    note_launch,
    only_start,
    prepare,
    read_config,
    wait_until_prepared,
)
from megaptm.run.rank import check_processes, worker_environment

SILENT_SECONDS = 20.0
"""For which a rank that found a mistake leaves it to rank 0 to tell: it may start so much later."""


def train(config: Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> int:
    """Train the run of a config, or continue it, and return the exit code of the whole, or of this rank."""
    place = worker_environment()
    try:
        wanted = read_config(config, overrides)
        if place is not None:
            check_processes(place, wanted.layout)
    except UserError:
        if place is not None and place.rank > 0:
            # All ranks find the same mistake, and rank 0 tells it: torchrun and srun then end the others.
            time.sleep(SILENT_SECONDS)
            sys.exit(EXIT_USER_ERROR)
        raise
    with storage_errors_told(wanted.run):
        return _launch(wanted) if place is None else _be_a_worker(wanted, rank=place.rank)


def _launch(config: Config) -> int:
    is_new = not Path(config.run).exists()
    check_corpora(config)
    with only_start(config):
        run = prepare(config)
        note_launch(run)
        print(title(config), flush=True)
        command = [sys.executable, "-m", "megaptm.train.worker", "--run", str(run)]
        try:
            return launch(
                command,
                processes=config.layout.processes,
                run=run,
                environment=environment_of(config),
                threads=config.train.threads,
                hang_seconds=config.train.hang_seconds,
                patience=config.data.patience,
            )
        except UserError:
            if is_new:
                discard_unused(run)
            raise


def _be_a_worker(config: Config, *, rank: int) -> int:
    from megaptm.train.run import run_worker

    if rank > 0:
        return run_worker(str(wait_until_prepared(config)))
    check_corpora(config)
    with only_start(config):
        run = prepare(config)
        note_launch(run)
        return run_worker(str(run))

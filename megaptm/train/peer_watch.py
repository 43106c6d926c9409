"""Hang detection among ranks under torchrun and srun, which only notice processes that exit."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from pathlib import Path

from megaptm.config import Config
from megaptm.errors import EXIT_FAILURE
from megaptm.parallel.collectives import barrier, broadcast_object
from megaptm.resilience.failures import report_hang
from megaptm.resilience.heartbeat import EXIT, HEARTBEATS, Heartbeat, beat_seconds, write_request
from megaptm.resilience.watchdog import Watchdog, WatchdogLimits
from megaptm.run.rank import RankEnvironment

SECOND_WATCH_FACTOR = 1.5
"""Multiple of rank 0's time limit after which rank 1 ends the run, in case rank 0 itself hangs."""


def watch_each_other(heartbeat: Heartbeat, run: Path, config: Config, rank_env: RankEnvironment) -> None:
    """Start the heartbeat and, on the first two ranks, a watchdog of all ranks. After a hang all responsive ranks exit
    with code 75."""
    folder = run / HEARTBEATS / broadcast_object(secrets.token_hex(4))
    if rank_env.rank == 0:
        shutil.rmtree(folder.parent, ignore_errors=True)  # of earlier starts
    barrier()
    heartbeat.open(folder)
    seconds = config.train.hang_seconds
    if seconds is None or rank_env.rank > 1:
        return
    factor = 1.0 if rank_env.rank == 0 else SECOND_WATCH_FACTOR
    limits = WatchdogLimits(hang_seconds=seconds, data_timeout=config.data.timeout_seconds, factor=factor)
    watchdog = Watchdog(folder, range(rank_env.world), limits=limits, is_rank=True)
    threading.Thread(target=_watch_ranks, args=(watchdog, run, seconds), name="watchdog", daemon=True).start()


def _watch_ranks(watchdog: Watchdog, run: Path, hang_seconds: float) -> None:
    while (hang := watchdog.check_progress()) is None:
        time.sleep(beat_seconds(hang_seconds))
    if not watchdog.folder.exists():  # a later start of the run owns the folder now
        os._exit(EXIT_FAILURE)
    code = report_hang(hang, run=run)
    write_request(watchdog.folder, EXIT)
    os._exit(code)

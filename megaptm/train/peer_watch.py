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
from megaptm.resilience.failures import exit_code_of_hang
from megaptm.resilience.heartbeat import HEARTBEATS, LEAVE, Heartbeat, beat_seconds, give_order
from megaptm.resilience.watchdog import Limits, Watchdog
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
    times = 1.0 if rank_env.rank == 0 else SECOND_WATCH_FACTOR
    limits = Limits(hang_seconds=seconds, patience=config.data.timeout_seconds, times=times)
    watchdog = Watchdog(folder, range(rank_env.world), limits=limits, within=True)
    threading.Thread(target=_watch, args=(watchdog, run, seconds), name="watchdog", daemon=True).start()


def _watch(watchdog: Watchdog, run: Path, hang_seconds: float) -> None:
    while (hang := watchdog.look()) is None:
        time.sleep(beat_seconds(hang_seconds))
    if not watchdog.folder.exists():  # a later start of the run owns the folder now
        os._exit(EXIT_FAILURE)
    code = exit_code_of_hang(hang, run=run)
    give_order(watchdog.folder, LEAVE)
    os._exit(code)

"""Division of corpus checks among the ranks of a run."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from pathlib import Path

from megaptm.data.shared_checks import ShareOfChecks
from megaptm.parallel.collectives import barrier, broadcast_object
from megaptm.run.folder import VERIFIED
from megaptm.run.rank import RankEnvironment


def divide_checks(run: Path, rank_env: RankEnvironment) -> ShareOfChecks:
    """Return the part of the corpus checks that this rank does. Rank 0 first creates the folder for results of this
    start and removes those of earlier starts. All ranks call this."""
    folder = run / VERIFIED / broadcast_object(secrets.token_hex(4))
    if rank_env.rank == 0:
        with contextlib.suppress(OSError):  # without the folder, each rank verifies all shards that it reads
            shutil.rmtree(folder.parent, ignore_errors=True)
            folder.mkdir(parents=True)
    barrier()
    return ShareOfChecks(folder, rank_env.rank, rank_env.world)

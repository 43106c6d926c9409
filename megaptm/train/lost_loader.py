"""Explanation of why a DataLoader worker ended."""

from __future__ import annotations

import signal

from megaptm.config import Config
from megaptm.data.loader import LostWorkerError
from megaptm.errors import FailureError, UserError, storage_errors_as_user_errors
from megaptm.resilience.failures import BUS_ERROR_CAUSE
from megaptm.run.corpora import RunCorpora

IF_KILLED = "if nobody killed it, the machine ran out of memory: lower data.workers, or add memory."
IF_ENDED = "see its output above, and check whether code of the objective ends its process."


def explain_lost_worker(error: LostWorkerError, config: Config) -> UserError:
    """Return an error with the reason why a DataLoader worker ended.

    Indexes of shards are mapped into memory. If one became shorter or its disk fails, the system kills the worker with
    SIGBUS.
    """
    if error.exit_code == -signal.SIGBUS:
        try:
            with storage_errors_as_user_errors("a corpus"):
                RunCorpora(config).check()
        except UserError as error_of_shard:
            return error_of_shard
        return FailureError(f"{error}: {BUS_ERROR_CAUSE}.")
    return FailureError(f"{error}: {IF_KILLED if error.exit_code == -signal.SIGKILL else IF_ENDED}")

"""How a rank ends whose loader lost a process: torch raises that wherever the rank is, and says little of why."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from megaptm.errors import EXIT_FAILURE, EXIT_USER_ERROR, UserError, storage_errors_as_user_errors
from megaptm.processes import end_now

LOST_LOADER = re.compile(r"DataLoader worker \(pid")
BUS_ERROR = f"signal: {signal.strsignal(signal.SIGBUS)}"
KILLED = f"by signal: {signal.strsignal(signal.SIGKILL)}"
IF_KILLED = "if nobody killed it, the machine was out of memory: lower data.workers, or give it more memory."
IF_ENDED = "see what it wrote above, and whether code of the objective ends its process."


@contextmanager
def ended_by_lost_loader(run: str | Path) -> Iterator[None]:
    """Tell why a process that read for this rank was lost, and end the rank."""
    try:
        yield
    except Exception as error:
        if not LOST_LOADER.match(str(error)):
            raise
        # Where the rank waits for data, torch raises a second one of the first, which alone says how it ended.
        said = str(error.__cause__ if LOST_LOADER.match(str(error.__cause__)) else error)
        if KILLED not in said and was_killed(error):
            said += f" {KILLED}"
        sentence, code = why_lost(said, Path(run))
        # On a line of its own, where the launcher looks for it: torch may have raised it in the midst of another.
        click.echo(f"\nerror: {sentence}", err=True)
        end_now(code, handlers=False)


def was_killed(error: Exception) -> bool:
    """Whether a process that torch calls lost was killed. It does not say so where the rank misses its data before it
    hears of the process's end; the processes are at hand where it was raised."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    lost = [process for frame in frames for process in frame.f_locals.get("failed_workers", ())]
    return any(process.exitcode == -signal.SIGKILL for process in lost)


def why_lost(said: str, run: Path) -> tuple[str, int]:
    """Why a process that read for a run was lost, by what torch says of it, and the exit code.

    Shards are mapped into memory: where one has become shorter, or its disk fails, the system ends who looks at what is
    no longer there, and torch takes it for a lack of shared memory.
    """
    if BUS_ERROR in said:
        from megaptm.config import load
        from megaptm.resilience.failures import MAPPED
        from megaptm.run.corpora import RunCorpora
        from megaptm.run.folder import CONFIG

        try:
            with storage_errors_as_user_errors(run):
                RunCorpora(load(run / CONFIG)).check()
        except UserError as cut_short:
            return str(cut_short), EXIT_USER_ERROR
        return f"a process that reads this rank's data was lost ({BUS_ERROR}): {MAPPED}.", EXIT_FAILURE
    why = IF_KILLED if KILLED in said else IF_ENDED
    return f"a process that reads this rank's data was lost ({said}): {why}", EXIT_FAILURE

"""`python -m megaptm.train.worker --run FOLDER`: one process of a run; `megaptm train` starts one for each rank."""

from __future__ import annotations

import os
import re
import signal
import traceback
from pathlib import Path

import click

from megaptm.errors import EXIT_FAILURE, EXIT_USER_ERROR, UserError, storage_errors_as_user_errors
from megaptm.processes import collect_garbage_rarely, end_now, outlive_terminal

LOST_LOADER = re.compile(r"DataLoader worker \(pid")
BUS_ERROR = f"signal: {signal.strsignal(signal.SIGBUS)}"
KILLED = f"by signal: {signal.strsignal(signal.SIGKILL)}"


@click.command()
@click.option("--run", required=True, help="The run folder; its config.yaml says everything else.")
def main(run: str) -> None:
    outlive_terminal()
    collect_garbage_rarely()
    try:
        from megaptm.train.run import run_worker

        with storage_errors_as_user_errors(run):
            code = run_worker(run)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        end_now(EXIT_USER_ERROR, handlers=False)
    except KeyboardInterrupt:
        # While the program is still loading, or a second time under torchrun: an end by a signal, no failure.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception as error:
        if LOST_LOADER.match(str(error)):  # torch raises it wherever the rank is
            # Where the rank waits for data, torch raises a second one of the first, which alone says how it ended.
            said = str(error.__cause__ if LOST_LOADER.match(str(error.__cause__)) else error)
            sentence, code = told_of_lost_loader(said, Path(run))
            # On a line of its own, where the launcher looks for it: torch may have raised it in the midst of another.
            click.echo(f"\nerror: {sentence}", err=True)
            end_now(code, handlers=False)
        # Not left to torch's hook, which begins each line with the rank: the launcher, who knows the rank, looks for a
        # traceback at the beginning of a line, to hold back one that only echoes another's.
        traceback.print_exc()
        end_now(EXIT_FAILURE, handlers=False)
    end_now(code)


def told_of_lost_loader(said: str, run: Path) -> tuple[str, int]:
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
    why = (
        "if nobody killed it, the machine was out of memory; give data.workers a smaller number, or the machine more "
        "memory."
        if KILLED in said
        else "see what it wrote above, and whether code of the objective ends its process."
    )
    return f"a process that reads this rank's data was lost ({said}): {why}", EXIT_FAILURE


if __name__ == "__main__":
    main()

"""`python -m megaptm.train.worker --run FOLDER`: one process of a run; `megaptm train` starts one for each rank."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import NoReturn

import click

from megaptm.errors import EXIT_FAILURE, EXIT_USER_ERROR, UserError, storage_errors_told


@click.command()
@click.option("--run", required=True, help="The run folder; its config.yaml says everything else.")
def main(run: str) -> None:
    from megaptm.train.run import run_worker

    try:
        with storage_errors_told(run):
            sys.exit(run_worker(run))
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        _end(EXIT_USER_ERROR)
    except Exception:
        # Not left to torch's hook, which begins each line with the rank: the launcher, who knows the rank, looks for a
        # traceback at the beginning of a line, to hold back one that only echoes another's.
        traceback.print_exc()
        _end(EXIT_FAILURE)


def _end(code: int) -> NoReturn:
    """At once: Python takes seconds to take its modules apart, in which the launcher waits, and the other ranks."""
    with contextlib.suppress(OSError):  # the disk that the log is on may be full
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

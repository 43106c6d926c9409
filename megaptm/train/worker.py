"""`python -m megaptm.train.worker --run FOLDER`: one process of a run; `megaptm train` starts one for each rank."""

from __future__ import annotations

import os
import signal
import traceback

import click

from megaptm.errors import (
    EXIT_FAILURE,
    UserError,
    resource_errors_as_user_errors,
    storage_errors_as_user_errors,
)
from megaptm.processes import collect_garbage_rarely, end_now, outlive_terminal, replace_unencodable


@click.command()
@click.option("--run", required=True, help="The run folder; its config.yaml says everything else.")
def main(run: str) -> None:
    outlive_terminal()
    collect_garbage_rarely()
    replace_unencodable()
    try:
        with resource_errors_as_user_errors(), storage_errors_as_user_errors(run):
            from megaptm.train.run import run_worker

            code = run_worker(run)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        end_now(error.exit_code, handlers=False)
    except KeyboardInterrupt:
        # While the program is still loading, or a second time under torchrun: an end by a signal, no failure.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:
        # Not left to torch's hook, which begins each line with the rank: the launcher, who knows the rank, looks for a
        # traceback at the beginning of a line, to hold back one that only echoes another's.
        traceback.print_exc()
        end_now(EXIT_FAILURE, handlers=False)
    end_now(code)


if __name__ == "__main__":
    main()

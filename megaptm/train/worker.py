"""`python -m megaptm.train.worker --run FOLDER`: one process of a run; `megaptm train` starts one per rank."""

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
from megaptm.processes import (
    collect_garbage_rarely,
    end_now,
    escape_log_messages,
    replace_unencodable,
    survive_closed_terminal,
)


@click.command()
@click.option("--run", required=True, help="Run folder; its config.yaml has all other settings.")
def main(run: str) -> None:
    survive_closed_terminal()
    collect_garbage_rarely()
    replace_unencodable()
    escape_log_messages()
    try:
        with resource_errors_as_user_errors(), storage_errors_as_user_errors(run):
            from megaptm.train.run import run_worker

            code = run_worker(run)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        end_now(error.exit_code, handlers=False)
    except KeyboardInterrupt:
        # During imports, or the second time under torchrun: exit by the signal, not with a failure.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except Exception:
        # Not left to torch's hook, which prefixes each line with the rank. The launcher knows the rank; it looks for a
        # traceback at the start of a line, to suppress those that only echo another rank's.
        traceback.print_exc()
        end_now(EXIT_FAILURE, handlers=False)
    end_now(code)


if __name__ == "__main__":
    main()

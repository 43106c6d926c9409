"""`python -m megaptm.train.worker --run FOLDER`: one process of a run; `megaptm train` starts one for each rank."""

from __future__ import annotations

import sys

import click

from megaptm.errors import EXIT_USER_ERROR, UserError


@click.command()
@click.option("--run", required=True, help="The run folder; its config.yaml says everything else.")
def main(run: str) -> None:
    from megaptm.train.run import run_worker

    try:
        sys.exit(run_worker(run))
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()

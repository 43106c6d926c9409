"""Command `megaptm report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--upload", is_flag=True, help="First send metrics to MLflow that it missed while it was unreachable.")
def report(run: Path, upload: bool) -> None:
    """Report the progress of a run: loss curve and use of time.

    The loss curve is also written to the run folder as a picture.

    \b
      megaptm report runs/gpt2-tiny
    """
    from megaptm.report.summary import report as show

    show(run, send=upload)

"""`megaptm report`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--upload", is_flag=True, help="First send to MLflow what an unreachable server missed.")
def report(run: Path, upload: bool) -> None:
    """Tell how a run went.

    Its loss as a curve here and as a picture in the run folder, and where each second went.

    \b
      megaptm report runs/gpt2-tiny
    """
    from megaptm.report.summary import report as show

    show(run, send=upload)

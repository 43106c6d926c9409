"""`python -m megaptm.launch.slurm.node_report LOGS`: comparison of a job's nodes before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.check.finding import must_pass
from megaptm.check.node_probe import gather
from megaptm.check.nodes import Asked, compare
from megaptm.errors import EXIT_USER_ERROR, UserError
from megaptm.schedulers.node_process import ProcessOutput
from megaptm.schedulers.slurm.nodes import by_label


@click.command()
@click.option("--asked", required=True, type=float, help="When, by this node's clock.")
@click.argument("logs", type=click.Path(path_type=Path))
def main(asked: float, logs: Path) -> None:
    """Name each node that differs from the others; exit with an error if the run cannot start."""
    nodes = (logs / "nodes").read_text().split()
    said = ProcessOutput(*((logs / f"look.{end}").read_text(errors="replace") for end in ("out", "err")))
    answers = gather(nodes, by_label(said, nodes), begin=asked, everywhere=True)
    findings = list(compare(answers, Asked(places=(str(logs),), token=str(logs))))
    for finding in findings:
        if finding.state == "warning":
            click.echo(f"warning: {finding.says}", err=True)
    try:
        must_pass(findings)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()

"""`python -m megaptm.slurm.look LOGS`: what the nodes of a job said before its processes start, judged."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.check.ask import gather
from megaptm.check.compare import Asked, compare
from megaptm.check.finding import must_pass
from megaptm.check.on_slurm import by_label
from megaptm.check.process import Output
from megaptm.errors import EXIT_USER_ERROR, UserError


@click.command()
@click.option("--asked", required=True, type=float, help="When, by this node's clock.")
@click.argument("logs", type=click.Path(path_type=Path))
def main(asked: float, logs: Path) -> None:
    """Name each node that is not as the others; end with an error where the run cannot start so."""
    nodes = (logs / "nodes").read_text().split()
    said = Output(*((logs / f"look.{end}").read_text(errors="replace") for end in ("out", "err")))
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

"""`python -m megaptm.launch.slurm.node_report LOGS`: comparison of a job's nodes before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.check.finding import raise_check_faults
from megaptm.check.node_probe import collect_replies
from megaptm.check.nodes import ProbedPaths, compare_nodes
from megaptm.errors import EXIT_USER_ERROR, UserError
from megaptm.schedulers.node_process import ProcessOutput
from megaptm.schedulers.slurm.nodes import split_by_node


@click.command()
@click.option("--probe-start", required=True, type=float, help="Start of the probe by this node's clock.")
@click.argument("logs", type=click.Path(path_type=Path))
def main(probe_start: float, logs: Path) -> None:
    """Compare the nodes of a Slurm job: name each that differs from the others, and exit with an error if the run
    cannot start."""
    nodes = (logs / "nodes").read_text().split()
    output = ProcessOutput(*((logs / f"nodes.{end}").read_text(errors="replace") for end in ("out", "err")))
    replies = collect_replies(nodes, split_by_node(output, nodes), begin=probe_start, all_nodes=True)
    findings = list(compare_nodes(replies, ProbedPaths(writable=(str(logs),), token=str(logs))))
    for finding in findings:
        if finding.state == "warning":
            click.echo(f"warning: {finding.message}", err=True)
    try:
        raise_check_faults(findings)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()

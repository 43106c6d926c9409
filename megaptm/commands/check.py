"""`megaptm check`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.options import of_a_job
from megaptm.commands.output import print_json
from megaptm.errors import EXIT_USER_ERROR


@click.command()
@of_a_job
@click.option("--time", "limit", help="Limit of a job, as sbatch takes it: 24:00:00.")
@click.option("--full", is_flag=True, help="Read every byte of the corpora and of the newest checkpoint, not a sample.")
@click.option("--speed", is_flag=True, help="Measure the nodes: products, disk, links; half a minute.")
@click.option("--only", multiple=True, metavar="TOPIC", help="Look at this alone: --only data --only memory.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(
    config: Path,
    overrides: tuple[str, ...],
    machine: str | None,
    nodes: int | None,
    per_node: int | None,
    gpus_per_node: int | None,
    sbatch: tuple[str, ...],
    limit: str | None,
    full: bool,
    speed: bool,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Look at everything a run needs, before it is queued. Nothing is started, nothing left behind.

    The config's rules, memory, corpora and tokenizers, the run folder and its room, the tracking server, what is asked
    of the scheduler, times, and the software of every node. CONFIG is a training config, or the folder of a run that
    was begun; any key can be set on the command line.

    \b
    Here and now; and every byte of the corpora:
      megaptm check configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}'
      megaptm check configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}' --full

    \b
    A job of Slurm, where jobs are submitted:
      megaptm check configs/gpt3/175b.yaml --machine h100-80g --time 24:00:00 --sbatch=--partition=large

    \b
    All nodes of an allocation, measured and compared (inside salloc, an sbatch script or a Ray job):
      megaptm check configs/gpt3/175b.yaml --machine h100-80g --speed

    \b
    For a script:
      megaptm check runs/gpt3-175b train.steps=120000 --json | jq '.findings[] | select(.state == "fault")'

    \b
    Exit codes: 0 no fault (there may be warnings, and what is not known), 2 a fault.
    """
    from megaptm.check.cli import CommandLine, collect_findings, print_findings
    from megaptm.console import Console

    command_line = CommandLine(
        config=config,
        overrides=overrides,
        machine=machine,
        nodes=nodes,
        processes_per_node=per_node,
        gpus_per_node=gpus_per_node,
        time=limit,
        slurm_options=sbatch,
        full=full,
        speed=speed,
        only=only,
    )
    if as_json:
        findings = list(collect_findings(command_line, tell=lambda words: None))
        faults = any(finding.state == "fault" for finding in findings)
        found = [finding.to_json() for finding in findings]
        print_json({"config": str(config), "ok": not faults, "findings": found})
    else:
        console = Console()
        with console.status("") as status:
            faults = print_findings(collect_findings(command_line, tell=status.update), console)
    if faults:
        sys.exit(EXIT_USER_ERROR)

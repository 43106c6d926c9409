"""Command `megaptm check`."""

from __future__ import annotations

import sys
from typing import Any

import click

from megaptm.commands.options import add_job_options, change_option
from megaptm.commands.output import print_json
from megaptm.errors import EXIT_USER_ERROR


@click.command("check")
@add_job_options
@change_option
@click.option("--time", help="Time limit of a job, in sbatch's format: 24:00:00.")
@click.option("--full", is_flag=True, help="Read all bytes of the corpora and of the newest checkpoint, not a sample.")
@click.option("--only", multiple=True, metavar="TOPIC", help="Check only this topic; repeatable: --only data.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check_command(as_json: bool, **arguments: Any) -> None:
    """Check everything that a run needs before it is queued. Starts nothing and leaves no files behind.

    Checks the rules of the config, memory, corpora and tokenizers, the run folder and its disk space, the tracking
    server, the request to the scheduler, times, and the software of all nodes. CONFIG is a training config or the
    folder of an existing run. KEY=VALUE changes any key of the config.

    \b
    On this machine; with --full, reading all bytes of the corpora:
      megaptm check configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}'
      megaptm check configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}' --full

    \b
    A Slurm job, on a machine that submits jobs:
      megaptm check configs/gpt3/175b.yaml --machine h100-80g --time 24:00:00 --sbatch=--partition=large

    \b
    All nodes of an allocation, compared (inside salloc, an sbatch script or a Ray job):
      megaptm check configs/gpt3/175b.yaml --machine h100-80g --only nodes

    \b
    For scripts:
      megaptm check runs/gpt3-175b train.steps=120000 --json | jq '.findings[] | select(.state == "fault")'

    \b
    Exit codes: 0 no faults (warnings and unknowns are possible), 2 faults.
    """
    from megaptm.check.cli import CommandLine, collect_findings, print_findings
    from megaptm.console import Console

    command_line = CommandLine(**arguments)
    if as_json:
        findings = list(collect_findings(command_line, tell=lambda message: None))
        faults = any(finding.state == "fault" for finding in findings)
        findings_json = [finding.to_json() for finding in findings]
        print_json({"config": str(command_line.config), "ok": not faults, "findings": findings_json})
    else:
        console = Console()
        with console.status("") as status:
            faults = print_findings(collect_findings(command_line, tell=status.update), console)
    if faults:
        sys.exit(EXIT_USER_ERROR)

"""Command `megaptm launch ray`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from megaptm.commands.options import (
    FiniteNumber,
    add_start_options,
    launched_run,
    machine_option,
    overrides_argument,
)
from megaptm.commands.output import echo
from megaptm.errors import UserError

JOB, STOP_SECONDS = "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_JOB_STOP_WAIT_TIME_S"
"""Environment variables of a submitted job: one that each job has, and the seconds after which `ray job stop` kills it
(default: 3)."""
WAIT_AGAIN_SECONDS = 300.0


@click.command("ray")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@add_start_options
@click.option("--address", help="HOST:PORT of the cluster.  [default: RAY_ADDRESS, else a new one on this machine]")
@click.option(
    "--wait",
    type=FiniteNumber(min=0),
    help="Seconds to wait for devices: for new nodes, for other jobs to end, for a lost node to return.  "
    f"[default: 0 at the start, {WAIT_AGAIN_SECONDS:.0f} after a node was lost]",
)
@machine_option(metavar="NAME", help="Machine type of the nodes; a smaller layout must then fit in its memory.")
@click.option("--dry-run", is_flag=True, help="Only show the placement of ranks on nodes.")
def launch_ray_command(
    config: Path,
    overrides: tuple[str, ...],
    address: str | None,
    wait: float | None,
    machine: str | None,
    dry_run: bool,
    **start: Any,
) -> None:
    """Train on a Ray cluster, or in a cluster of this machine alone.

    Tensor ranks of a group share a node. If a node is lost, the run waits for another one and then continues from the
    newest checkpoint, with the configured layout or with the largest one that fits the remaining nodes.

    \b
      megaptm launch ray configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}' layout.data=2
      megaptm launch ray configs/gpt3/xl.yaml run=/shared/xl --address 10.0.0.1:6379 --dry-run
      ray job submit --working-dir . -- python -m megaptm launch ray configs/gpt3/xl.yaml run=/shared/xl

    \b
    Exit codes:
      0    complete
      1    failure
      2    user error
      75   saved or interrupted: start it again, it continues
      130  ended without saving by a second Ctrl-C
    """
    from megaptm.check.api import check_before_submission
    from megaptm.check.finding import CheckInput
    from megaptm.launch.ray.supervisor import Supervisor, show_placement
    from megaptm.plan.machine import load_machine
    from megaptm.processes import survive_closed_terminal
    from megaptm.report.terminal import run_title
    from megaptm.run.folder import read_config
    from megaptm.schedulers.ray.cluster import join_ray_cluster

    with launched_run(config, overrides, start, dry_run=dry_run) as (config, overrides, change):
        run_config = read_config(config, overrides, change=change)
    ray_machine = load_machine(machine) if machine else None
    _refuse_copied_folder(run_config.run)
    check_before_submission(CheckInput(config=run_config, change=change, machine=ray_machine))
    if not (address or os.environ.get("RAY_ADDRESS")):
        echo("starting Ray on this machine", err=True)  # takes seconds, in which Ray prints nothing
    join_ray_cluster(address, processes=run_config.layout.processes)
    if dry_run:
        echo(run_title(run_config))
        show_placement(run_config)
        return
    survive_closed_terminal()
    echo(run_title(run_config))
    if JOB in os.environ and STOP_SECONDS not in os.environ:
        echo(f"`ray job stop` kills this job after 3 seconds, saved or not: set {STOP_SECONDS} to allow more.")
    supervisor = Supervisor(
        run_config,
        wait=wait or 0.0,
        wait_again=WAIT_AGAIN_SECONDS if wait is None else wait,
        machine=ray_machine,
        address=address,
        change=change,
    )
    sys.exit(supervisor.supervise())


def _refuse_copied_folder(run: str) -> None:
    """Refuse a run folder in the working directory of a Ray job: Ray gives each node its own copy of that directory."""
    if any(part.startswith("_ray_pkg_") for part in Path(run).parts):
        raise UserError(
            f"run ({Path(run).name}) would be in a copy of the working directory, which Ray removes after the job: set "
            "run=/FOLDER to a folder on a disk that all nodes share."
        )

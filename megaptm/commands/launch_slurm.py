"""`megaptm launch slurm`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import of_a_job
from megaptm.commands.output import echo

if TYPE_CHECKING:
    from megaptm.config import Config


@click.command()
@of_a_job
@click.option("--cpus-per-task", "cpus", type=click.IntRange(min=1), default=12, show_default=True)
@click.option(
    "--time", "limit", default="24:00:00", show_default=True, help="Limit of a job; near it the run is saved."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Jobs, each after the other; absent: as many as the run takes on --machine, or one.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only print the script, then what is wrong; also where Slurm or the corpora are not.",
)
@click.option("--follow/--no-follow", default=True, help="Show what the jobs say until the run is done.")
def slurm(
    config: Path,
    overrides: tuple[str, ...],
    machine: str | None,
    nodes: int | None,
    per_node: int | None,
    gpus_per_node: int | None,
    sbatch: tuple[str, ...],
    cpus: int,
    limit: str,
    jobs: int | None,
    dry_run: bool,
    follow: bool,
) -> None:
    """Submit a run to Slurm, with the script of slurm/gpt_175b.sh in the run's numbers.

    First everything is looked at that decides whether the run can start, as `megaptm check` does; with --machine also
    whether it fits into memory and a job's time. Nothing is made or submitted where something is wrong.

    A job goes back to the queue before its limit and on with the run. Where it may not (--no-requeue), it ends, and the
    next of --jobs goes on; one that finds all steps done ends at once. With --machine their number follows from the
    plan: the days of the run, what failures cost included, over what a job's limit leaves for steps. Where they ran out
    and the run got on, who follows submits another one.

    \b
      megaptm launch slurm configs/gpt3/175b.yaml --machine h100-80g --sbatch=--account=PROJECT
      megaptm launch slurm configs/bert/large.yaml devices=32 --jobs 3 --dry-run
    """
    from megaptm.check.finding import counted
    from megaptm.errors import UserError
    from megaptm.launch.slurm.request import JobRequest, make_submission

    job_request = JobRequest(
        config=config,
        overrides=overrides,
        machine=machine,
        nodes=nodes,
        per_node=per_node,
        gpus=gpus_per_node,
        cpus=cpus,
        limit=limit,
        jobs=jobs,
        sbatch_options=sbatch,
    )
    submission = make_submission(job_request)
    if dry_run:
        echo(submission.script, nl=False)
        echo(f"{submission.jobs} jobs, each after the other." if submission.jobs > 1 else "1 job.", err=True)
        if submission.faults:
            number = counted(len(submission.faults), "fault", "faults")
            raise UserError(f"this script would not be submitted ({number}):", *submission.faults)
        return
    submission.prepare()
    sys.exit(_submit(submission.config, submission.jobs, follow))


def _submit(config: Config, jobs: int, follow: bool) -> int:
    from megaptm.launch.slurm.chain import JobChain

    chain, run = JobChain(config), config.run
    numbers = chain.submit(jobs)
    echo(f"Submitted job {', '.join(numbers)}; run folder {run}")
    if not follow:
        return 0
    try:
        if chain.follow(lambda text: click.echo(text, nl=False)):
            return 0
    except KeyboardInterrupt:
        echo(f"\nNo longer followed; the jobs go on. To end them: scancel {' '.join(chain.waiting)}")
        return 0
    echo(f"error: the run is not done; {run}/logs says why.", err=True)
    return 1

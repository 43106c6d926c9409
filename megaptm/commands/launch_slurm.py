"""Command `megaptm launch slurm`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.options import add_job_options, add_start_options, launched_run
from megaptm.commands.output import echo

if TYPE_CHECKING:
    from megaptm.config import Config


@click.command("slurm")
@add_job_options
@add_start_options
@click.option(
    "--cpus-per-task", "cpus", type=click.IntRange(min=1), default=12, show_default=True, help="CPUs per process."
)
@click.option(
    "--time", "limit", default="24:00:00", show_default=True, help="Time limit of a job; the run is saved before it."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of consecutive jobs.  [default: as many as the run needs on --machine; 1 without --machine]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the script and the faults, submit nothing; works also without Slurm or the corpora.",
)
@click.option("--follow/--no-follow", default=True, help="Show the output of the jobs until the run is complete.")
def launch_slurm_command(
    config: Path,
    overrides: tuple[str, ...],
    dry_run: bool,
    follow: bool,
    **options: Any,
) -> None:
    """Submit a run to Slurm. The job script is that of slurm/gpt_175b.sh with the resources of this run.

    First, `megaptm check` decides whether the run can start. With --machine it also checks memory and time. If a check
    fails, nothing is created or submitted.

    Before its time limit a job saves and goes back to the queue, then continues the run. A job that may not be requeued
    (--no-requeue) ends, and the next of --jobs continues; a job of a complete run ends at once. With --machine the
    number of jobs follows from the plan: the duration of the run with failures, divided by a job's time for steps. If
    the jobs were too few and the run made progress, --follow submits another one.

    \b
      megaptm launch slurm configs/gpt3/175b.yaml --machine h100-80g --sbatch=--account=PROJECT
      megaptm launch slurm configs/bert/large.yaml devices=32 --jobs 3 --dry-run
    """
    from megaptm.check.finding import number_with_noun
    from megaptm.errors import UserError
    from megaptm.launch.slurm.request import JobRequest, make_submission

    with launched_run(config, overrides, options, dry_run=dry_run) as (config, overrides, change):
        submission = make_submission(JobRequest(config=config, overrides=overrides, change=change, **options))
        if not dry_run:
            submission.prepare()
    if dry_run:
        echo(submission.script, nl=False)
        echo(f"{submission.jobs} consecutive jobs." if submission.jobs > 1 else "1 job.", err=True)
        if submission.faults:
            count = number_with_noun(len(submission.faults), "fault", "faults")
            raise UserError(f"this script would not be submitted ({count}):", *submission.faults)
        return
    sys.exit(_submit_jobs(submission.config, submission.jobs, follow))


def _submit_jobs(config: Config, jobs: int, follow: bool) -> int:
    from megaptm.launch.slurm.chain import JobChain

    chain, run = JobChain(config), config.run
    job_ids = chain.submit(jobs)
    echo(f"Submitted job {', '.join(job_ids)}; run folder {run}")
    if not follow:
        return 0
    try:
        if chain.follow(lambda text: click.echo(text, nl=False)):
            return 0
    except KeyboardInterrupt:
        echo(f"\nStopped following; the jobs continue. To end them: scancel {' '.join(chain.waiting)}")
        return 0
    echo(f"error: the run is not complete; see the logs in {run}/logs.", err=True)
    return 1

"""`megaptm launch`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.launch_ray import ray


@click.group()
def launch() -> None:
    """Start a run on a cluster."""


launch.add_command(ray)


@launch.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--nodes", type=click.IntRange(min=1), help="Must make up the layout; absent: as many as it needs.")
@click.option("--tasks-per-node", "tasks", type=click.IntRange(min=1), help="Processes on a node; absent: 8, or fewer.")
@click.option("--gpus-per-node", "gpus", type=click.IntRange(min=0), help="Absent: one for each process; 0: none.")
@click.option("--cpus-per-task", "cpus", type=click.IntRange(min=1), default=12, show_default=True)
@click.option(
    "--time", "limit", default="24:00:00", show_default=True, help="Limit of a job; near it the run is saved."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Jobs, each after the other.")
@click.option("--sbatch", "more", multiple=True, metavar="OPTION", help="For sbatch, e.g. --sbatch=--partition=large.")
@click.option("--dry-run", is_flag=True, help="Only check, and print the script.")
@click.option("--follow/--no-follow", default=True, help="Show what the jobs say until the run is done.")
def slurm(
    config: Path,
    overrides: tuple[str, ...],
    nodes: int | None,
    tasks: int | None,
    gpus: int | None,
    cpus: int,
    limit: str,
    jobs: int,
    more: tuple[str, ...],
    dry_run: bool,
    follow: bool,
) -> None:
    """Submit a run to Slurm, with the script of slurm/gpt_175b.sh in the run's numbers.

    A job goes back to the queue before its limit and on with the run; where it may not, or ends by a failure, the next
    of --jobs goes on. One that finds all steps done ends at once.

    \b
      megaptm launch slurm configs/gpt3/175b.yaml --sbatch=--account=PROJECT
      megaptm launch slurm configs/bert/large.yaml devices=32 --jobs 3 --dry-run
    """
    from megaptm.slurm.script import Request, nodes_for, render
    from megaptm.slurm.submit import check_slurm, home
    from megaptm.train.corpora import check_corpora
    from megaptm.train.prepare import prepare, read_config

    wanted = read_config(config, overrides)
    processes = wanted.layout.processes
    per_node = tasks or (processes // nodes if nodes and processes % nodes == 0 else min(8, processes))
    needed = nodes_for(wanted.layout, per_node)
    if nodes not in (None, needed):
        raise click.UsageError(f"--nodes {nodes} of {per_node} processes are not the {processes} of the layout.")
    check_corpora(wanted)
    run = Path(wanted.run)
    request = Request(
        name=run.name,
        nodes=needed,
        tasks=per_node,
        gpus=per_node if gpus is None else gpus,
        cpus=cpus,
        time=limit,
        output=f"{run}/logs/job-%j.log",
        more=more,
    )
    script = render(request, [str(run)], title=f"Written by megaptm launch slurm {config}")
    if dry_run:
        click.echo(script, nl=False)
        return
    check_slurm(home(), script)
    prepare(wanted)
    (run / "logs").mkdir(exist_ok=True)
    (run / "job.sh").write_text(script, encoding="utf-8")
    sys.exit(_submit(wanted.run, jobs, follow))


def _submit(folder: str, jobs: int, follow: bool) -> int:
    from megaptm.slurm.begin import finished
    from megaptm.slurm.submit import follow as follow_job
    from megaptm.slurm.submit import submit
    from megaptm.train.prepare import read_config

    run = Path(folder)
    numbers = submit(run / "job.sh", jobs=jobs)
    click.echo(f"Submitted job {', '.join(numbers)}; run folder {run}")
    if not follow:
        return 0
    try:
        for number in numbers:
            follow_job(number, run / f"logs/job-{number}.log", lambda text: click.echo(text, nl=False))
            if finished(read_config(run)):
                return 0
    except KeyboardInterrupt:
        click.echo(f"\nNo longer followed; the jobs go on. To end them: scancel {' '.join(numbers)}")
        return 0
    click.echo(f"error: the run is not done; {run}/logs says why.", err=True)
    return 1

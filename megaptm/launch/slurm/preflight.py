"""`python -m megaptm.launch.slurm.preflight CONFIG ...`: steps that a job does once, before its processes start."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.config import Config
from megaptm.errors import EXIT_USER_ERROR, UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.corpora_checks import check_corpora
from megaptm.run.folder import check_run_start, read_config
from megaptm.run.rank import RankEnvironment, check_world_size
from megaptm.run.submission import check_submitted
from megaptm.storage import refuse_link
from megaptm.train.early_stop import has_stopped_early


@click.command()
@click.option("--attempt", required=True, help="JOB.RESTART, the name of the log folder.")
@click.option("--tasks", required=True, type=int, help="Number of processes that the job starts.")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1)
def main(attempt: str, tasks: int, config: Path, overrides: tuple[str, ...]) -> None:
    """Print how often a Slurm job may start its processes again, for how many hours a fault of a node counts, and the
    log folder of this attempt; nothing if the run has all its steps."""
    try:
        check_submitted(config)
        checked = read_config(config, overrides)
        logs = preflight(checked, attempt=attempt, tasks=tasks)
    except UserError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR)
    click.echo(f"{checked.train.restarts} {checked.train.node_fault_hours} {logs}" if logs else "", nl=False)


def preflight(config: Config, *, attempt: str, tasks: int) -> Path | None:
    """Check the config of a Slurm job before a thousand processes fail on it; create and return the log folder."""
    run = Path(config.run)
    if is_run_finished(config):
        click.echo(f"{run} is complete, and saved at step {last_saved_step(run)}.", err=True)
        return None
    check_run_start(config)
    check_world_size(RankEnvironment(rank=0, world=tasks, local_rank=0), config.layout)
    check_corpora(config)
    return make_log_folder(run, attempt)


def make_log_folder(run: Path, attempt: str) -> Path:
    """Create and return the log folder of an attempt, so that late output of a lost node does not mix with the next.

    The script of the job and srun write files there. Raise `UserError` if one is a link.
    """
    logs = run / "logs" / attempt
    for path in (logs.parent, logs, *logs.glob("*")):
        refuse_link(path)
    logs.mkdir(parents=True, exist_ok=True)
    return logs


def is_run_finished(config: Config) -> bool:
    """Whether the run's last step is saved, or early stopping ended it."""
    return last_saved_step(Path(config.run)) >= config.train.steps or has_stopped_early(config)


if __name__ == "__main__":
    main()

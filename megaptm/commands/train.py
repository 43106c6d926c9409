"""`megaptm train`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.errors import EXIT_USER_ERROR, UserError, storage_errors_told

if TYPE_CHECKING:
    from megaptm.config import Config


SILENT_SECONDS = 20.0
"""For which a rank that found a mistake leaves it to rank 0 to tell: it may start so much later."""


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def train(config: Path, overrides: tuple[str, ...]) -> None:
    """Train a model, or continue a run.

    The same command again goes on from the newest checkpoint. CONFIG is a YAML file, or the folder of a run that was
    begun. Any key can be set on the command line.

    \b
    A small model on this machine, then the same run further, on two processes:
      megaptm train configs/tiny/gpt2.yaml data.mix='{corpora/books: 1}' train.steps=200
      megaptm train runs/tiny-gpt2 train.steps=400 devices=2

    \b
    Where torchrun or srun starts the processes, each of them becomes one of the run's:
      torchrun --nproc-per-node 8 -m megaptm train configs/gpt3/xl.yaml devices=8
      srun --ntasks-per-node 8 megaptm train configs/gpt3/175b.yaml

    \b
    Exit codes: 0 done, 1 a failure, 2 a mistake, a full disk or data that can no longer be read (the run is saved
    then), told in one sentence, 75 stopped by a signal (SIGTERM, SIGUSR1, Ctrl-C, SIGHUP of a lost terminal) and
    saved, or ended because a process hung: start it again; 130 left at once, unsaved, by Ctrl-C a second time.
    """
    from megaptm.processes import outlive_terminal
    from megaptm.run.folder import read_config
    from megaptm.run.rank import check_processes, worker_environment

    outlive_terminal()
    place = worker_environment()
    try:
        wanted = read_config(config, overrides)
        if place is not None:
            check_processes(place, wanted.layout)
    except UserError:
        if place is not None and place.rank > 0:
            # All ranks find the same mistake, and rank 0 tells it: torchrun and srun then end the others.
            time.sleep(SILENT_SECONDS)
            sys.exit(EXIT_USER_ERROR)
        raise
    with storage_errors_told(wanted.run):
        sys.exit(_launch(wanted) if place is None else _be_a_worker(wanted, rank=place.rank))


def _launch(config: Config) -> int:
    from megaptm.launch.local import launch
    from megaptm.report.terminal import title
    from megaptm.run.corpora import check_corpora
    from megaptm.run.folder import discard_unused, environment_of, note_launch, only_start, prepare

    is_new = not Path(config.run).exists()
    check_corpora(config)
    with only_start(config):
        run = prepare(config)
        note_launch(run)
        click.echo(title(config))
        command = [sys.executable, "-m", "megaptm.train.worker", "--run", str(run)]
        try:
            return launch(
                command,
                processes=config.layout.processes,
                run=run,
                environment=environment_of(config),
                threads=config.train.threads,
                hang_seconds=config.train.hang_seconds,
                patience=config.data.patience,
            )
        except UserError:
            if is_new:
                discard_unused(run)
            raise


def _be_a_worker(config: Config, *, rank: int) -> int:
    from megaptm.run.corpora import check_corpora
    from megaptm.run.folder import note_launch, only_start, prepare, wait_until_prepared
    from megaptm.train.run import run_worker

    if rank > 0:
        return run_worker(str(wait_until_prepared(config)))
    check_corpora(config)
    with only_start(config):
        run = prepare(config)
        note_launch(run)
        return run_worker(str(run))

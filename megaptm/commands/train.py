"""`megaptm train`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.options import overrides_argument


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
def train(config: Path, overrides: tuple[str, ...]) -> None:
    """Train a model, or continue a run.

    The same command again goes on from the newest checkpoint. CONFIG is a YAML file, or the folder of a run that was
    begun. Any key can be set on the command line.

    \b
    A small model on this machine; then 200 steps more, at the learning rate of its last step, on two processes:
      megaptm train configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}' train.steps=200
      megaptm train runs/gpt2-tiny train.steps=400 optimizer.decay_steps=200 devices=2

    \b
    The first half of a run of 400 steps, then the rest of it, as if it had not been stopped:
      megaptm train configs/gpt2/tiny.yaml run=runs/halves train.steps=400 train.stop_at=200
      megaptm train runs/halves

    \b
    A run whose corpus was moved:
      megaptm train runs/gpt2-tiny data.mix='{/new/place/books: 1}'

    \b
    Where torchrun or srun starts the processes, each of them becomes one of the run's:
      torchrun --nproc-per-node 8 -m megaptm train configs/gpt3/xl.yaml devices=8
      (on several nodes: docs/torchrun.md)
      srun --ntasks-per-node 8 megaptm train configs/gpt3/175b.yaml

    \b
    Exit codes: 0 done, 1 a failure, 2 a mistake, a full disk or data that can no longer be read (the run is saved
    then), told in one sentence, 75 stopped by a signal (SIGTERM, SIGUSR1, Ctrl-C, SIGHUP of a lost terminal) and
    saved, or ended because a process hung: start it again; 130 left at once, unsaved, by Ctrl-C a second time.
    """
    from megaptm.launch.local import train as train_run
    from megaptm.processes import outlive_terminal

    outlive_terminal()
    sys.exit(train_run(config, overrides))

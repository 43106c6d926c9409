"""Command `megaptm train`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.options import add_start_options, overrides_argument, read_branch


@click.command("train")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@add_start_options
def train_command(
    config: Path,
    overrides: tuple[str, ...],
    change: bool,
    weights_only: bool,
    back_to: int | None,
    skip_data: int | None,
) -> None:
    """Train a model, or continue a run.

    The same command again continues the run from its newest checkpoint. CONFIG is a YAML file, the name of a shipped
    config, or a run folder. KEY=VALUE changes any key of the config (megaptm config keys); run=FOLDER is where the run
    is stored. Watch it in another terminal with megaptm watch.

    \b
    A small model on this machine; then 200 more steps on two processes, at the learning rate of the last step:
      megaptm train configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}' train.steps=200
      megaptm train runs/gpt2-tiny train.steps=400 optimizer.decay_steps=200 devices=2

    \b
    The first half of a run of 400 steps; then the second half, as if the run had not been stopped:
      megaptm train configs/gpt2/tiny.yaml run=runs/halves train.steps=400 train.stop_at=200
      megaptm train runs/halves

    \b
    Another learning rate from the next step on:
      megaptm train runs/gpt2-tiny optimizer.lr=1e-4 --change

    \b
    A branch: another run that continues from a checkpoint of this one, with another recipe:
      megaptm train run=runs/decay from=runs/gpt2-tiny@200 optimizer.decay=linear train.steps=250

    \b
    Return to step 200, and skip the text of 50 batches:
      megaptm train runs/gpt2-tiny --back-to 200 --skip-data 50

    \b
    A run whose corpus was moved:
      megaptm train runs/gpt2-tiny data.mix='{/new/path/books: 1}'

    \b
    With torchrun or srun, each process that they start becomes one rank:
      torchrun --nproc-per-node 8 -m megaptm train configs/gpt3/xl.yaml devices=8
      (on several nodes: docs/torchrun.md)
      srun --ntasks-per-node 8 megaptm train configs/gpt3/175b.yaml

    \b
    Exit codes:
      0    complete
      1    failure
      2    user error, full disk or unreadable data, reported in one sentence
      75   saved after a signal (SIGTERM, SIGUSR1, Ctrl-C, SIGHUP), or ended after a hang: start it again
      130  ended without saving by a second Ctrl-C
    """
    from megaptm.launch.local import train_locally as train_run
    from megaptm.processes import survive_closed_terminal

    survive_closed_terminal()
    branch = read_branch(config, overrides, weights_only=weights_only, back_to=back_to, skip_data=skip_data)
    if branch is not None:
        config, overrides, change = branch.run, branch.overrides, True
    sys.exit(train_run(config, overrides, change=change, branch=branch, back_to=back_to, skip_data=skip_data or 0))

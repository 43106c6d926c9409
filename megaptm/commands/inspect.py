"""Command `megaptm inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from megaptm.commands.options import overrides_argument
from megaptm.errors import UserError

if TYPE_CHECKING:
    from rich.text import Text

    from megaptm.config import Config


@click.command("inspect")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--step", type=int, help="Training step, from 1 on.  [default: the first with the run's data]")
@click.option("--count", default=3, show_default=True, help="Number of samples to show.")
@click.option("--split", default="train", show_default=True, help="train or validation.")
def inspect_command(config: Path, overrides: tuple[str, ...], step: int | None, count: int, split: str) -> None:
    """Show samples as a run reads them: inputs with masks, and labels.

    In a highlighted INPUT→LABEL, the model reads INPUT, such as a mask, and is to predict LABEL. CONFIG is a YAML file
    or the folder of a run; KEY=VALUE changes any of its keys.

    \b
      megaptm inspect configs/gpt2/tiny.yaml
      megaptm inspect runs/gpt2-tiny --step 200
      megaptm inspect runs/bert-tiny 'objective={masked-lm: {rate: 0.3}}' --split validation
    """
    from rich.panel import Panel

    from megaptm.config.phases import phase_end
    from megaptm.console import Console
    from megaptm.run.folder import read_config

    if count < 0:
        raise UserError(f"--count ({count}) must be 0 or more.")
    loaded = read_config(config, overrides)
    first = 0
    if split == "train":
        done = 0 if loaded.data.cursors is None else loaded.data.cursors.step
        step = done + 1 if step is None else step
        if step <= done:
            reason = f": the run has other data after step {done}" if done else ""
            raise UserError(f"--step ({step}) must be at least {done + 1}{reason}.")
        if step > (end := phase_end(loaded, done)):
            raise UserError(f"--step ({step}) must be at most {end}, the end of the present phase of the run.")
        first = loaded.batch_schedule.first_sample(step - 1)
    elif step is not None:
        raise UserError(f"--step ({step}) is for --split train: all validations read the same samples.")
    for title, text in shown_samples(loaded, split=split, first=first, count=count):
        Console().print(Panel(text, title=title, title_align="left"))


def shown_samples(config: Config, *, split: str, first: int, count: int) -> list[tuple[str, Text]]:
    """Return titles and texts of samples of a split of a run's corpora."""
    from data_pipeline.inspection import show_sample
    from megaptm.run.corpora import RunCorpora

    corpora = RunCorpora(config)
    mix = corpora.mix(split)
    numbers = range(first, first + count)
    return [
        (f"sample {number:,}", show_sample(mix.sample(number), mix.batch_spec, corpora.tokenizer)) for number in numbers
    ]

"""`megaptm tune`: short runs that help to choose a setting."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from megaptm.commands.options import FiniteNumber, overrides_argument
from megaptm.commands.output import echo
from megaptm.errors import EXIT_USER_ERROR, UserError

DECADES = 1000.0
"""Factor between optimizer.lr and each end of the default range."""
PICTURE = "report/lr-range.png"
POSITIVE = FiniteNumber(min=0, min_open=True)


@click.group("tune")
def tune_group() -> None:
    """Choose a setting by short runs.

    \b
      megaptm tune lr gpt2/tiny data.mix='{corpora/books: 1}'
    """


@tune_group.command()
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--steps", type=click.IntRange(min=20), default=200, show_default=True, help="Number of steps.")
@click.option("--min-lr", type=POSITIVE, help="Rate of the first steps.  [default: a thousandth of optimizer.lr]")
@click.option("--max-lr", type=POSITIVE, help="Rate of the last step.  [default: 1000 times optimizer.lr]")
def lr(config: Path, overrides: tuple[str, ...], steps: int, min_lr: float | None, max_lr: float | None) -> None:
    """Train a few steps with a rising learning rate, show the loss by rate, and suggest a peak rate.

    The rate rises by a constant factor a step, until the loss diverges (range test, arXiv:1506.01186). The suggested
    rate is a tenth of that with the lowest loss. It is a start: short runs prefer higher rates than long ones. The run
    has its own folder, without validation and loggers. With the same range it is not trained again.

    \b
      megaptm tune lr gpt2/tiny data.mix='{corpora/books: 1}'
      megaptm tune lr bert/base data.mix='{corpora/books: 1}' devices=8 --steps 500 --min-lr 1e-6 --max-lr 1e-1
    """
    from megaptm.console import Console
    from megaptm.launch.local import train_locally as train_run
    from megaptm.report.curves import draw_curves, save_picture
    from megaptm.report.lr_range import RateRange
    from megaptm.run.folder import read_config
    from megaptm.track import read_metrics

    if "RANK" in os.environ:
        raise UserError("megaptm tune starts its own processes on this machine: call it without torchrun and srun.")
    chosen = read_config(config, overrides)
    low, high = min_lr or chosen.optimizer.lr / DECADES, max_lr or chosen.optimizer.lr * DECADES
    if low >= high:
        raise UserError(f"--min-lr ({low:g}) must be less than --max-lr ({high:g}).")
    run = Path(chosen.run if any(word.startswith("run=") for word in overrides) else f"{chosen.run}-lr")
    run = run / f"{low:.3g}-{high:.3g}-{steps}"
    keys = (
        *(
            f"run={run}",
            f"train.steps={steps}",
            "train.phase_start=0",
            "phases=[]",
            "train.ramp=null",
            "train.log_every=1",
        ),
        *("train.validate_every=null", "train.validate_batches=1", "train.stop=null", "train.spikes.action=warn"),
        *("checkpoint.every=1000000000", "checkpoint.keep={last: 1, best: 0, every: null}"),
        *("track.enabled=false", "callbacks={}"),
        *("checkpoint.upload_to=null", "hub.export_every=null", "hub.push_to=null"),
        *(f"optimizer.lr={high!r}", f"optimizer.min_lr_ratio={low / high!r}", "optimizer.warmup_shape=exponential"),
        *(f"optimizer.warmup_steps={steps}", "optimizer.max_warmup_ratio=null", "optimizer.decay=constant"),
        *("optimizer.decay_steps=null", "optimizer.stable_steps=0", "optimizer.restarts=[]", "optimizer.power=null"),
    )
    code = train_run(config, [*overrides, *keys])
    if code not in (0, EXIT_USER_ERROR) or not (records := read_metrics(run)):
        sys.exit(code)
    if code:
        echo(f"The run ended with exit code {code}, so the range ends there.")
    result = RateRange.of(records)
    save_picture(run / PICTURE, result.plot)
    console = Console()
    for line in draw_curves(result.points(), width=min(console.width, 100) - 12):
        console.print(line, no_wrap=True)
    echo("loss by the decimal logarithm of the learning rate")
    console.print(result.table())
    echo(f"Picture:   {run / PICTURE}")
    echo(f"Suggested: optimizer.lr={result.suggested:.2g}")

"""`megaptm tune`: short runs that help to choose a setting."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from megaptm.commands.options import FiniteNumber, overrides_argument
from megaptm.commands.output import echo
from megaptm.errors import EXIT_CONTINUE, EXIT_USER_ERROR, UserError

DECADES = 1000.0
"""Factor between optimizer.lr and each end of the default range."""
PICTURE = "report/lr-range.png"
CALLBACK = "megaptm.train.range_test:RangeTest"
NUM_LINES = 10
"""Number of progress lines of a test, if its output is no terminal."""
POSITIVE = FiniteNumber(min=0, min_open=True)


@click.group("tune")
def tune_group() -> None:
    """Choose a setting by short runs.

    \b
      megaptm tune lr gpt2/tiny data.mix='{corpora/books: 1}'
    """


@tune_group.command("lr")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--steps", type=click.IntRange(min=20), default=200, show_default=True, help="Number of steps.")
@click.option("--min-lr", type=POSITIVE, help="Rate of the first steps.  [default: a thousandth of optimizer.lr]")
@click.option("--max-lr", type=POSITIVE, help="Rate of the last step.  [default: 1000 times optimizer.lr]")
def tune_lr_command(
    config: Path, overrides: tuple[str, ...], steps: int, min_lr: float | None, max_lr: float | None
) -> None:
    """Train a few steps with a rising learning rate, show the loss by rate, and suggest a peak rate.

    The rate rises by a constant factor a step, until the loss diverges (range test, arXiv:1506.01186). The suggested
    rate is a tenth of that with the lowest loss. It is a start: short runs prefer higher rates than long ones. The test
    has its own folder beside that of the run, without validation and loggers. The same command again only shows the
    result, or continues a test that was interrupted.

    \b
      megaptm tune lr gpt2/tiny data.mix='{corpora/books: 1}'
      megaptm tune lr bert/base data.mix='{corpora/books: 1}' devices=8 --steps 500 --min-lr 1e-6 --max-lr 1e-1
    """
    from megaptm.console import Console
    from megaptm.launch.local import train_locally as train_run
    from megaptm.report.curves import draw_curves, save_picture
    from megaptm.report.lr_range import RateRange
    from megaptm.report.terminal import STARTED_BY
    from megaptm.run.folder import find_config_differences, read_config
    from megaptm.shell import command_line, typed_path
    from megaptm.track import read_metrics

    if "RANK" in os.environ:
        raise UserError("megaptm tune starts its own processes on this machine: call it without torchrun and srun.")
    chosen = read_config(config, overrides)
    low, high = min_lr or chosen.optimizer.lr / DECADES, max_lr or chosen.optimizer.lr * DECADES
    if low >= high:
        raise UserError(f"--min-lr ({low:g}) must be less than --max-lr ({high:g}).")
    run = Path(chosen.run if any(word.startswith("run=") for word in overrides) else f"{chosen.run}-lr")
    run = run / f"{low:.3g}-{high:.3g}-{steps}"
    words = [*overrides, *_test_keys(run, steps, low, high)]
    if run.exists() and (changes := find_config_differences(read_config(config, words)).changes):
        keys = ", ".join(change.key for change in changes)
        raise UserError(f"{typed_path(run)} has a test with another config ({keys}): choose another run=FOLDER.")
    if _last_exit_code(run) != 0:
        echo(f"Training at learning rates from {low:.3g} to {high:.3g}, for {steps} steps or until the loss diverges.")
        os.environ[STARTED_BY] = ""
        try:
            code = train_run(config, words)
        except UserError as error:
            if _last_exit_code(run) != EXIT_USER_ERROR:  # otherwise it trained, until a loss was not finite
                raise
            echo(f"The test ends here: {str(error).partition(';')[0]}.")  # without advice for a run
        else:
            if code == EXIT_CONTINUE:
                echo("The same command continues the test.")
            if code:
                sys.exit(code)
    result = RateRange.from_records(read_metrics(run))
    save_picture(run / PICTURE, result.plot)
    console = Console()
    echo("\nLoss by learning rate:")
    width = min(console.width, 100) - 12
    for line in draw_curves(result.points(), width=width, format_x=lambda x: f"{10**x:.2g}"):
        console.print(line, no_wrap=True)
    console.print(result.table())
    echo(f"Picture:   {typed_path(run / PICTURE)}")
    suggestion = f"optimizer.lr={result.suggested:.2g}"
    echo(f"Suggested: {suggestion}, a tenth of the rate with the lowest loss")
    recipe = (word for word in overrides if not word.startswith(("run=", "optimizer.lr=")))
    echo(f"next:\n  {command_line(['train', str(config), *recipe, suggestion])}")


def _test_keys(run: Path, steps: int, low: float, high: float) -> Iterator[str]:
    """Yield the config keys of a range test. It ends before `train.steps`, so that it does not validate."""
    yield from (f"run={run}", f"train.steps={steps + 1}", "train.stop_at=null", "phases=[]", "train.ramp=null")
    yield from ("train.phase_start=0", "train.validate_every=null", "train.stop=null")
    yield from (f"train.log_every={max(1, steps // NUM_LINES)}", "train.spikes={action: warn, sigmas: 1000000000.0}")
    yield from (f"callbacks={{{CALLBACK}: {{steps: {steps}}}}}",)
    yield from ("checkpoint.every=1000000000", "checkpoint.keep={last: 1, best: 0, every: null}")
    yield from ("track.enabled=false", "checkpoint.upload_to=null", "hub.export_every=null", "hub.push_to=null")
    yield from (f"optimizer.lr={high!r}", f"optimizer.min_lr_ratio={low / high!r}", "optimizer.decay=constant")
    yield from ("optimizer.warmup_shape=exponential", f"optimizer.warmup_steps={steps}")
    yield from ("optimizer.max_warmup_ratio=null", "optimizer.decay_steps=null", "optimizer.stable_steps=0")
    yield from ("optimizer.restarts=[]", "optimizer.power=null")


def _last_exit_code(run: Path) -> int | None:
    """Return the exit code of the last job of a run; None if there was none, or if it was killed."""
    from megaptm.resilience.events import ExitEvent, LaunchEvent, read_events

    jobs = [event for event in read_events(run) if event["kind"] in (LaunchEvent.kind, ExitEvent.kind)]
    return jobs[-1].get("code") if jobs else None

"""Command `megaptm cache-logits`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from megaptm.commands.options import overrides_argument, read_part
from megaptm.commands.output import echo

LOG_SECONDS = 60.0
"""Seconds between two progress lines in a log. On a terminal there is a line for each file."""


@click.command("cache-logits")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--top", type=click.IntRange(1), default=32, show_default=True, help="Number of logits per token.")
@click.option(
    "--type",
    "dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Number format of the logits.",
)
@click.option(
    "--part", default="1/1", help="Part to compute, such as 1/8: parts can run at the same time.  [default: all]"
)
def cache_logits_command(config: Path, overrides: tuple[str, ...], top: int, dtype: str, part: str) -> None:
    """Run the teacher of CONFIG once and store its largest logits for all samples of the run.

    The folder is distill.cached_logits. It holds logits for the samples of train.steps and for the validation samples.
    The same config then trains the student without running the teacher. The same command again continues an interrupted
    computation, or adds the samples of a longer run.

    \b
      megaptm cache-logits configs/distilbert/tiny.yaml distill.cosine=0 distill.cached_logits=logits/bert-tiny
      megaptm train configs/distilbert/tiny.yaml run=runs/read distill.cosine=0 distill.cached_logits=logits/bert-tiny

    \b
    On several devices at the same time:
      CUDA_VISIBLE_DEVICES=0 megaptm cache-logits CONFIG --part 1/2
      CUDA_VISIBLE_DEVICES=1 megaptm cache-logits CONFIG --part 2/2
    """
    part_index, parts = read_part(part)
    from megaptm.report.terminal import TimedLog
    from megaptm.run.folder import read_config

    tell, logged_at, on_terminal = TimedLog(stream=sys.stderr), time.monotonic(), sys.stderr.isatty()
    run_config = read_config(config, overrides)
    if on_terminal:
        tell("loading PyTorch")
    from megaptm.distillation.cache import cache_logits as write
    from megaptm.distillation.section import distill_section

    def show_progress(done: int, total: int) -> None:
        nonlocal logged_at
        if on_terminal or time.monotonic() - logged_at >= LOG_SECONDS:
            logged_at = time.monotonic()
            tell(f"{done:,} of {total:,} samples")

    done = write(
        run_config,
        top=top,
        dtype=dtype,
        part=part_index,
        parts=parts,
        tell=show_progress,
    )
    samples = done.manifest.samples
    distill = distill_section(run_config)
    folder = distill.cached_logits if distill else ""
    if done.missing:
        computed = f"{folder}: computed the logits of {done.samples:,} samples"
        echo(f"{computed}; {done.missing:,} files of other parts are missing.")
        return
    echo(
        f"{folder}: logits of {samples['train']:,} training and {samples['validation']:,} validation samples, "
        f"{done.manifest.top} per token, {done.bytes:,} bytes; computed those of {done.samples:,} samples."
    )


COMMANDS = {"megaptm": (cache_logits_command,)}

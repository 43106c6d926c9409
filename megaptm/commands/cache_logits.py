"""`megaptm cache-logits`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from megaptm.commands.options import overrides_argument, read_part
from megaptm.commands.output import echo

LOGGED_EVERY = 60.0
"""Seconds between two lines in a log: a teacher may be asked for days. On a terminal there is one for each file."""


@click.command("cache-logits")
@click.argument("config", type=click.Path(path_type=Path))
@overrides_argument
@click.option("--top", type=click.IntRange(1), default=32, show_default=True, help="Words of each place.")
@click.option(
    "--type",
    "dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Of a logit.",
)
@click.option(
    "--part", default="1/1", help="One of so many that may be written at once, for instance 1/8; all by default."
)
def cache_logits(config: Path, overrides: tuple[str, ...], top: int, dtype: str, part: str) -> None:
    """Run the teacher of a CONFIG once, and keep the largest logits of each word that its student will read.

    They are written to the folder in distill.cached_logits, for all samples that the run reads in train.steps, and for
    held-out samples; the same config then trains the student without the teacher. Given again it goes on where it
    stopped, or adds what a longer run needs.

    \b
      megaptm cache-logits configs/distilbert/tiny.yaml distill.cosine=0 distill.cached_logits=logits/bert-tiny
      megaptm train configs/distilbert/tiny.yaml run=runs/read distill.cosine=0 distill.cached_logits=logits/bert-tiny

    \b
    On several devices at once:
      CUDA_VISIBLE_DEVICES=0 megaptm cache-logits CONFIG --part 1/2
      CUDA_VISIBLE_DEVICES=1 megaptm cache-logits CONFIG --part 2/2
    """
    number, parts = read_part(part)
    from megaptm.report.terminal import TimedLog
    from megaptm.run.folder import read_config

    tell, told, on_terminal = TimedLog(stream=sys.stderr), time.monotonic(), sys.stderr.isatty()
    wanted = read_config(config, overrides)
    if on_terminal:
        tell("loading PyTorch")
    from megaptm.inference.teacher_logits import cache_logits as write

    def progress(now: int, of: int) -> None:
        nonlocal told
        if on_terminal or time.monotonic() - told >= LOGGED_EVERY:
            told = time.monotonic()
            tell(f"{now:,} of {of:,} samples")

    done = write(
        wanted,
        top=top,
        dtype=dtype,
        part=number - 1,
        parts=parts,
        tell=progress,
    )
    samples, folder = done.manifest.samples, wanted.distill.cached_logits if wanted.distill else ""
    if done.missing:
        ran = f"{folder}: the teacher was run on {done.samples:,} samples"
        echo(f"{ran}; {done.missing:,} files of other parts are missing.")
        return
    echo(
        f"{folder}: logits of {samples['train']:,} samples and of {samples['validation']:,} held-out ones, "
        f"{done.manifest.top} words each, {done.bytes:,} bytes; the teacher was run on {done.samples:,}."
    )

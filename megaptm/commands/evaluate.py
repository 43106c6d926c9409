"""`megaptm evaluate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from megaptm.commands.output import print_json


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--corpus", multiple=True, help="Corpus to measure on, in place of the run's own; may be given again.")
@click.option("--rows", type=click.IntRange(1), help="Held-out rows to measure on; all by default.")
@click.option("--step", type=int, help="Checkpoint to take; the newest by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def evaluate(run: Path, corpus: tuple[str, ...], rows: int | None, step: int | None, as_json: bool) -> None:
    """Measure the model of RUN on held-out text.

    Loss, perplexity and (causal-lm) bits per byte, beside two baselines that read nothing: `unigram` knows how often
    each answer occurs in the training text, `uniform` only how many there are. The result is kept in the run folder.

    \b
      megaptm evaluate runs/tiny-gpt2
      megaptm evaluate runs/tiny-gpt2 --step 200 --rows 500 --json
      megaptm evaluate runs/tiny-gpt2 --corpus corpora/poems
    """
    from megaptm.report.terminal import TimedLog

    tell = TimedLog(stream=sys.stderr)
    tell("loading PyTorch")
    from rich.console import Console

    from megaptm.inference import evaluate as evaluation
    from megaptm.inference.loaded_model import open_run

    tell("reading the checkpoint")
    loaded = open_run(run, step=step)
    tell(f"opening the corpora (step {loaded.step:,}, on {loaded.device})")
    corpora = dict.fromkeys(corpus, 1.0)
    bars = Console(stderr=True) if sys.stderr.isatty() else None
    found = evaluation.evaluate(loaded, corpora=corpora, rows=rows, console=bars, tell=tell)
    if as_json:
        print_json(found.plain())
    else:
        evaluation.show(found, Console())
    sys.stdout.flush()
    if not corpora:
        tell("recording the result in the run folder and in MLflow")
        evaluation.record(loaded.config, found)

"""`megaptm evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.output import echo, print_json
from megaptm.errors import UserError
from megaptm.inference.evaluation_options import EvaluationOptions

if TYPE_CHECKING:
    from megaptm.inference.image_text import Retrieval, ZeroShot
    from megaptm.inference.loaded_model import LoadedModel

FREQUENT = 100
"""Of so many words, the most frequent, none is asked for: they are of every company."""


def _with_evaluation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command an option for each field of `EvaluationOptions`."""
    for one in reversed(fields(EvaluationOptions)):
        kind: dict[str, Any] = (
            {"is_flag": True} if one.default is False else {"type": click.IntRange(one.metadata["least"])}
        )
        command = click.option(f"--{one.name.replace('_', '-')}", help=one.metadata["help"], **kind)(command)
    return command


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--corpus", multiple=True, help="Corpus to measure on, in place of the run's own; may be given again.")
@_with_evaluation_options
@click.option("--step", type=int, help="Checkpoint to take; the newest by default.")
@click.option("--word", "words", multiple=True, help="Of word vectors: show what is near it; may be given again.")
@click.option(
    "--analogies",
    type=click.Path(path_type=Path),
    help="Of word vectors: a file of analogies, four words a line, whose fourth words are looked for.",
)
@click.option("--zero-shot", help="Of images and texts: a corpus with labels, by whose names images are classified.")
@click.option(
    "--template", "templates", multiple=True, help="What is said of a name; may be given again, and is averaged."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def evaluate(
    model: Path,
    corpus: tuple[str, ...],
    step: int | None,
    words: tuple[str, ...],
    analogies: Path | None,
    zero_shot: str | None,
    templates: tuple[str, ...],
    as_json: bool,
    **measured: Any,
) -> None:
    """Measure a MODEL, the folder of a run or of an exported model, on held-out text.

    Loss, perplexity and (causal-lm) bits per byte, beside two baselines that read nothing: `unigram` knows how often
    each answer occurs in the training text, `uniform` only how many there are. What a run achieves on its own corpora
    is kept in its folder. An exported model needs a --corpus, built with its tokenizer (tokenizer=FOLDER).

    \b
      megaptm evaluate runs/gpt2-tiny
      megaptm evaluate runs/gpt2-tiny --step 200 --rows 500 --json
      megaptm evaluate exported/gpt2-tiny --corpus corpora/poems
      megaptm evaluate runs/transformer-xl-tiny --memory 1600 --farthest 1000 --same-length

    Of word vectors the held-out loss is in the metrics of the run; they are asked for neighbors, of some frequent words
    where none is named, and for analogies.

    \b
      megaptm evaluate runs/word2vec-tiny --word list --analogies questions-words.txt

    A model of images and texts (CLIP) is also asked which held-out texts and images belong together, and with
    --zero-shot which of the names of a corpus's labels its held-out images have.

    \b
      megaptm evaluate runs/clip-tiny --zero-shot corpora/shapes-labels --template 'a photo of a {}.'

    Of regions and texts the same is asked by their vectors (UNIMO), or by whether they match, each text with each image
    (UNITER): of 128 pairs, or of --rows.
    """
    from megaptm.inference.folder import is_run
    from megaptm.report.terminal import TimedLog

    options = EvaluationOptions(**measured)
    a_run = is_run(model, step)
    if words or analogies or (a_run and _of_words(model)):
        _ask_words(model, words, analogies, step, as_json)
        return
    if not (a_run or corpus):
        raise UserError(f"{model} is an exported model, which has no corpora of its own: give --corpus FOLDER.")
    tell = TimedLog(stream=sys.stderr)
    tell("loading PyTorch")
    from megaptm.console import Console
    from megaptm.inference import evaluate as evaluation
    from megaptm.inference.loaded_model import load_model

    tell("reading the checkpoint")
    loaded = load_model(model, step=step)
    tell(f"opening the corpora (step {loaded.step:,}, on {loaded.device})")
    corpora = dict.fromkeys(corpus, 1.0)
    bars = Console(stderr=True) if sys.stderr.isatty() else None
    found = evaluation.evaluate(loaded, options, corpora=corpora, console=bars, tell=tell)
    matched, classified = _match(loaded, corpora, options.rows, zero_shot, templates)
    if as_json:
        more = [one.plain() for one in (matched, classified) if one is not None]
        print_json({key: value for said in (found.plain(), *more) for key, value in said.items()})
    else:
        evaluation.show(found, Console())
        for one in (matched, classified):
            if one is not None:
                one.show(Console())
    sys.stdout.flush()
    if not corpora and options.as_trained:
        tell("recording the result in the run folder" + (" and in MLflow" if loaded.config.track.enabled else ""))
        evaluation.record(loaded.config, found)


def _match(
    loaded: LoadedModel, corpora: dict[str, float], rows: int | None, labeled: str | None, templates: tuple[str, ...]
) -> tuple[Retrieval | None, ZeroShot | None]:
    """Of a model of images and texts, which belong together; of one of pixels, which names the images of a corpus
    have."""
    from megaptm.inference.image_text import retrieval
    from megaptm.inference.loaded_model import TEMPLATES
    from megaptm.inference.region_retrieval import region_retrieval
    from megaptm.objectives.images import ImageText

    family = loaded.spec.family
    if not isinstance(loaded.config.built_objective, ImageText):
        if labeled or templates:
            raise UserError(
                f"--zero-shot and --template are for models of images and texts, and {family.name} is none."
            )
        return region_retrieval(loaded, corpora, rows=rows) if family.reads_regions else None, None
    classified = loaded.zero_shot(corpus=labeled, templates=templates or TEMPLATES, rows=rows) if labeled else None
    return retrieval(loaded, corpora, rows=rows), classified


def _of_words(run: Path) -> bool:
    from megaptm.config import load_run, resolve
    from megaptm.families.words import WordSpec
    from megaptm.run.folder import CONFIG

    return isinstance(resolve(load_run(run / CONFIG)), WordSpec)


def _ask_words(run: Path, words: tuple[str, ...], analogies: Path | None, step: int | None, as_json: bool) -> None:
    """What is near some words, and how many analogies are answered."""
    from megaptm.words.vectors import load_words, read_questions

    vectors = load_words(run, step=step)
    if not words and not analogies:
        words = tuple(vectors.words[FREQUENT : FREQUENT + 5] or vectors.words[-5:])
    near = {word: vectors.nearest(word) for word in words}
    right, known = vectors.accuracy(questions := read_questions(analogies)) if analogies else (0, 0)
    if as_json:
        found = {"right": right, "known": known, "asked": len(questions)} if analogies else None
        print_json({"nearest": {word: dict(found) for word, found in near.items()}, "analogies": found})
        return
    for word, neighbors in near.items():
        echo(f"{word}: {', '.join(f'{name} {cosine:.2f}' for name, cosine in neighbors)}")
    if analogies:
        share = f" ({right / known:.1%})" if known else ""
        echo(f"{right:,} of {known:,} analogies{share}; {len(questions) - known:,} more have words without a vector")

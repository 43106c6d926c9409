"""`megaptm evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from megaptm.commands.family_group import FamilyCommand
from megaptm.commands.output import echo, print_json
from megaptm.errors import UserError
from megaptm.inference.evaluation_options import EvaluationOptions

if TYPE_CHECKING:
    from megaptm.console import Console
    from megaptm.inference.loaded_model import LoadedModel

SKIPPED_WORDS = 100
"""Most frequent words that are not shown by default: their neighbors tell nothing."""


def _with_evaluation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to the command for each field of `EvaluationOptions`."""
    for option in reversed(fields(EvaluationOptions)):
        kind: dict[str, Any] = (
            {"is_flag": True} if option.default is False else {"type": click.IntRange(option.metadata["minimum"])}
        )
        command = click.option(f"--{option.name.replace('_', '-')}", help=option.metadata["help"], **kind)(command)
    return command


@click.command(cls=FamilyCommand, attribute="EVALUATE_OPTIONS")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--corpus", multiple=True, help="Corpus to evaluate on, instead of the run's own; repeatable.")
@_with_evaluation_options
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
@click.option("--word", "words", multiple=True, help="Word vectors: show the nearest words of this word; repeatable.")
@click.option(
    "--analogies",
    type=click.Path(path_type=Path),
    help="Word vectors: file of analogies, four words per line; the fourth is predicted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def evaluate(
    model: Path,
    corpus: tuple[str, ...],
    step: int | None,
    words: tuple[str, ...],
    analogies: Path | None,
    as_json: bool,
    **further: Any,
) -> None:
    """Evaluate a MODEL on held-out data. MODEL is the folder of a run or of an exported model.

    Prints loss, perplexity and (causal-lm) bits per byte, beside two baselines without context: `unigram` predicts the
    label frequencies of the training text, `uniform` all labels equally. Results of a run on its own corpora are stored
    in its folder. An exported model needs a --corpus that was built with its tokenizer (tokenizer=FOLDER).

    \b
      megaptm evaluate runs/gpt2-tiny
      megaptm evaluate runs/gpt2-tiny --step 200 --rows 500 --json
      megaptm evaluate exported/gpt2-tiny --corpus corpora/poems
      megaptm evaluate runs/transformer-xl-tiny --memory 1600 --farthest 1000 --same-length

    For word vectors, prints the nearest words of --word (default: some frequent words) and the accuracy on --analogies.
    Their held-out loss is in the metrics of the run.

    \b
      megaptm evaluate runs/word2vec-tiny --word list --analogies questions-words.txt

    For image-text models (CLIP), prints also the accuracy of retrieval between held-out images and texts, and with
    --zero-shot the accuracy of classification by label names.

    \b
      megaptm evaluate runs/clip-tiny --zero-shot corpora/shapes-labels --template 'a photo of a {}.'

    For other models of texts and images, retrieval compares vectors, or scores each text with each image, by default of
    128 pairs.
    """
    from megaptm.inference.folder import is_run
    from megaptm.report.terminal import TimedLog

    options = EvaluationOptions(**{option.name: further.pop(option.name) for option in fields(EvaluationOptions)})
    a_run = is_run(model, step)
    if words or analogies or (a_run and _has_word_vectors(model)):
        _evaluate_word_vectors(model, words, analogies, step, as_json)
        return
    if not (a_run or corpus):
        raise UserError(
            f"{model} is an exported model, which has no corpora of its own: name one with --corpus FOLDER."
        )
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
    result = evaluation.evaluate(loaded, options, corpora=corpora, console=bars, tell=tell)
    further_results = _further_results(loaded, corpora, options.rows, further)
    if as_json:
        print_json(result.to_json() | {key: value for part in further_results for key, value in part.to_json().items()})
    else:
        evaluation.show(result, Console())
        for further_result in further_results:
            further_result.show(Console())
    sys.stdout.flush()
    if not corpora and options.as_trained:
        tell("recording the result in the run folder" + (" and in MLflow" if loaded.config.track.enabled else ""))
        evaluation.record(loaded.config, result)


class Result(Protocol):
    """Result of an evaluation."""

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON values."""
        ...

    def show(self, console: Console) -> None:
        """Print the result."""
        ...


def _further_results(
    loaded: LoadedModel, corpora: dict[str, float], rows: int | None, options: dict[str, Any]
) -> list[Result]:
    """Return results of retrieval, and of the options of families; empty for most models."""
    from megaptm.families import contributions

    # Families that are derived from others come later in the list, and are preferred.
    families = reversed([*contributions("retrieval", "RETRIEVAL")])
    retrievals = (retrieve(loaded, corpora, rows=rows) for retrieve in families)
    results: list[Result] = [result for result in retrievals if result is not None][:1]
    for evaluate_further in contributions("commands", "EVALUATE"):
        results += evaluate_further(loaded, rows, options)
    return results


def _has_word_vectors(run: Path) -> bool:
    from megaptm.config import load_run, resolve
    from megaptm.families.words import WordSpec
    from megaptm.run.folder import CONFIG

    return isinstance(resolve(load_run(run / CONFIG)), WordSpec)


def _evaluate_word_vectors(
    run: Path, words: tuple[str, ...], analogies: Path | None, step: int | None, as_json: bool
) -> None:
    """Print the nearest words of some words, and the accuracy on analogies."""
    from megaptm.words.vectors import load_words, read_questions

    vectors = load_words(run, step=step)
    if not words and not analogies:
        words = tuple(vectors.words[SKIPPED_WORDS : SKIPPED_WORDS + 5] or vectors.words[-5:])
    nearest = {word: vectors.nearest(word) for word in words}
    correct, known = vectors.count_solved(questions := read_questions(analogies)) if analogies else (0, 0)
    if as_json:
        counts = {"correct": correct, "known": known, "total": len(questions)} if analogies else None
        print_json({"nearest": {word: dict(neighbors) for word, neighbors in nearest.items()}, "analogies": counts})
        return
    for word, neighbors in nearest.items():
        echo(f"{word}: {', '.join(f'{name} {cosine:.2f}' for name, cosine in neighbors)}")
    if analogies:
        share = f" ({correct / known:.1%})" if known else ""
        echo(f"{correct:,} of {known:,} analogies{share}; {len(questions) - known:,} more have words without a vector")

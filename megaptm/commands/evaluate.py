"""Command `megaptm evaluate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megaptm.commands.family_group import FamilyCommand
from megaptm.commands.output import print_json
from megaptm.errors import UserError
from megaptm.inference.evaluation_options import EvaluationOptions

if TYPE_CHECKING:
    from megaptm.spec import LayerlessFamily


def _with_evaluation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option to the command for each field of `EvaluationOptions`."""
    for option in reversed(fields(EvaluationOptions)):
        kind: dict[str, Any] = (
            {"is_flag": True} if option.default is False else {"type": click.IntRange(option.metadata["minimum"])}
        )
        command = click.option(f"--{option.name.replace('_', '-')}", help=option.metadata["help"], **kind)(command)
    return command


@click.command("evaluate", cls=FamilyCommand)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--corpus", multiple=True, help="Corpus to evaluate on, instead of the run's own; repeatable.")
@_with_evaluation_options
@click.option("--step", type=int, help="Step of the checkpoint.  [default: the newest]")
@click.option("--ema", is_flag=True, help="Use the running mean of the weights (optimizer.ema_decay).")
@click.option("--json", "as_json", is_flag=True, help="Print the results as one JSON object.")
def evaluate_command(
    model: Path,
    corpus: tuple[str, ...],
    step: int | None,
    ema: bool,
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
    from megaptm.inference.folder import is_run_folder
    from megaptm.report.terminal import TimedLog

    options = EvaluationOptions(**{option.name: further.pop(option.name) for option in fields(EvaluationOptions)})
    a_run = is_run_folder(model, step)
    if a_run and (family := _layerless_family(model)) is not None:
        _refuse_options(further, family.evaluate_options, family.name)
        further = {name: further[name] for name in family.evaluate_options}
        family.evaluate(model, step=step, as_json=as_json, **further)
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

    tell(f"reading the checkpoint{': the running mean of the weights' if ema else ''}")
    loaded = load_model(model, step=step, ema=ema)
    _refuse_options(further, loaded.evaluate_options, loaded.spec.name)
    tell(f"opening the corpora (step {loaded.step:,}, on {loaded.device})")
    corpora = dict.fromkeys(corpus, 1.0)
    bars = Console(stderr=True) if sys.stderr.isatty() else None
    result = evaluation.evaluate_model(loaded, options, corpora=corpora, console=bars, tell=tell)
    further_results = loaded.evaluate_further(corpora, options.rows, further)
    if as_json:
        print_json(result.to_json() | {key: value for part in further_results for key, value in part.to_json().items()})
    else:
        evaluation.show_evaluation(result, Console())
        for further_result in further_results:
            further_result.show(Console())
    sys.stdout.flush()
    if not corpora and options.as_trained and not ema:
        tell("recording the result in the run folder" + (" and in the loggers" if loaded.config.track.enabled else ""))
        evaluation.record_evaluation(loaded.config, result)


def _refuse_options(values: Mapping[str, Any], known: Collection[str], model: str) -> None:
    """Raise UserError for an option of a family that the model does not use."""
    from megaptm.families import contributions

    for option in chain.from_iterable(options.get("evaluate", ()) for options in contributions("commands", "OPTIONS")):
        if values[option.name] and option.name not in known:
            raise UserError(f"{option.opts[0]} does not apply to a model of {model}: remove it.")


def _layerless_family(run: Path) -> LayerlessFamily | None:
    """Return the family of a run, if its models have no layers."""
    from megaptm.config import load_run_config, resolve_spec
    from megaptm.run.folder import CONFIG
    from megaptm.spec import LayerlessFamily

    family = resolve_spec(load_run_config(run / CONFIG)).family
    return family if isinstance(family, LayerlessFamily) else None

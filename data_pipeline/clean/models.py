"""Models that score or classify texts: a file of this project or of fastText, or a function of the user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from data_pipeline.clean.quality_classifier import load_classifier
from data_pipeline.clean.step import cached_by_file
from data_pipeline.functions import function_source_file, is_function, load_function
from megaptm.errors import UserError
from megaptm.storage import regular_file

FASTTEXT_SUFFIXES = (".bin", ".ftz")
LABEL = "__label__"

Scorer = Callable[[Sequence[str]], list[float]]


def model_inputs(model: str, step: str) -> tuple[str, ...]:
    """Return the file that the results of a model depend on."""
    if not is_function(model):
        return (model,)
    file = function_source_file(model, step)
    return () if file is None else (file,)


def load_scorer(model: str, label: str | None, step: str) -> Scorer:
    """Return a function from texts to their scores. `label`: the label of fastText whose probability is the score."""
    if is_function(model):
        return lambda texts: _checked_scores(load_function(model, step)(list(texts)), len(texts), model)
    if model.endswith(FASTTEXT_SUFFIXES):
        if label is None:
            raise UserError(f"{step}: label is missing: name the label of {model} whose probability is the score.")
        return lambda texts: [_label_probability(model, label, text, step) for text in texts]
    return load_classifier(model).scores


def _checked_scores(scores: Any, expected: int, model: str) -> list[float]:
    values = [float(score) for score in scores]
    if len(values) != expected or not all(map(math.isfinite, values)):
        raise ValueError(f"{model} must return a finite number for each of {expected} texts")
    return values


def _label_probability(model: str, label: str, text: str, step: str) -> float:
    labels = dict(predict_labels(model, text, step, count=-1))
    name = label.removeprefix(LABEL)
    if labels and name not in labels:
        shown = ", ".join(sorted(labels)[:20])
        raise UserError(f"{step}: label ({label}) is not a label of {model}: use one of {shown}.")
    return labels.get(name, 0.0)


def predict_labels(model: str, text: str, step: str, count: int = 1) -> list[tuple[str, float]]:
    """Return the most probable labels of a text by a fastText model, without their prefix (`count` -1: all)."""
    predicted = load_fasttext(model, step).f.predict(text.replace("\n", " ") + "\n", count, 0.0, "replace")
    return [(label.removeprefix(LABEL), min(float(probability), 1.0)) for probability, label in predicted]


def fasttext_labels(model: str, step: str) -> list[str]:
    """Return the labels of a fastText model, without their prefix."""
    return [label.removeprefix(LABEL) for label in load_fasttext(model, step).get_labels()]


@cached_by_file(maxsize=4)
def load_fasttext(path: str, step: str) -> Any:
    """Load a supervised model of fastText: lid.176.bin, GlotLID's model.bin, a quality classifier."""
    try:
        import fasttext
    except ImportError:
        raise UserError(f"{step} needs fasttext for {path}: `pip install fasttext-numpy2`.") from None
    try:
        with regular_file(path).open("rb"):
            return fasttext.load_model(path)
    except OSError as error:
        raise UserError(f"{step}: {path} cannot be read ({error.strerror or error}): correct the path.") from None
    except ValueError as error:
        raise UserError(f"{step}: {path} is not a model of fastText ({error}): correct the path.") from None

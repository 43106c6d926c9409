"""Rules for validation sets, and for what follows their losses: early stopping and retained checkpoints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from megaptm.config.schema import Config
from megaptm.errors import UserError, nearest_name_advice

NAME = re.compile(r"\w[\w-]*")
"""Names of validation sets, which are parts of names of metrics."""


PREFIX = "validation/"
"""Start of the names of metrics of a validation."""
MIX = ""
"""Name of the mix among the validation sets."""


def validation_set_of(metric: str) -> str:
    """Return the validation set of a metric: `news` of `validation/news/loss`, MIX of `validation/loss`."""
    return metric.removeprefix(PREFIX).rpartition("/")[0]


def validation_errors(config: Config) -> Iterator[str]:
    """Yield an error for each broken rule of validation, early stopping and the best checkpoints."""
    for rules in (_set_errors, _metric_errors, _keep_errors, _stop_errors):
        yield from rules(config)


def _set_errors(config: Config) -> Iterator[str]:
    sets, validate_every = config.data.validation_sets, config.train.validate_every
    for name, own in config.data.validation.items():
        if not NAME.fullmatch(name):
            yield f"data.validation: the name {name!r} may have letters, digits, _ and - only: choose another."
        if own.every is not None and (validate_every is None or own.every % validate_every):
            yield (
                f"data.validation.{name}.every ({own.every}) must be a multiple of train.validate_every "
                f"({validate_every}): change one of them."
            )
    with contextlib.suppress(UserError):  # reported by other code
        objective = config.built_objective
        if sets and objective.unit == "pairs":
            yield (
                f"data.validation and data.validate_each: objective ({objective.name}) is validated with pairs of the "
                "whole mix; remove them."
            )
        for name in sets:
            if name in ("loss", *objective.losses):
                key = f"data.validation.{name}" if name in config.data.validation else "data.validate_each"
                yield f"{key}: the validation set {name} has the name of a loss of the run: choose another name for it."


def _metric_errors(config: Config) -> Iterator[str]:
    """Yield an error for each key that follows a validation set which the run, or its phase, does not have."""
    stop, sets = config.train.stop, config.data.validation_sets
    metrics = {"checkpoint.keep.best.metric": config.checkpoint.keep.best.metric}
    for key, metric in (metrics if stop is None else metrics | {"train.stop.metric": stop.metric}).items():
        name = validation_set_of(metric)
        if name != MIX and name not in sets:
            yield f"{key} ({metric}) names no validation set of data.validation; {nearest_name_advice(name, sets)}"


def _keep_errors(config: Config) -> Iterator[str]:
    checkpoint, validate_every, key = config.checkpoint, config.train.validate_every, "train.validate_every"
    name = validation_set_of(checkpoint.keep.best.metric)
    if (own := config.data.validation.get(name)) is not None and own.every is not None:
        validate_every, key = own.every, f"data.validation.{name}.every"
    if not isinstance(checkpoint.every, int):
        if checkpoint.keep.best.count:
            yield (
                f"checkpoint.keep.best compares validation losses at fixed steps, and checkpoint.every is "
                f"{checkpoint.every}: set it to a number of steps, or remove checkpoint.keep.best."
            )
    elif checkpoint.keep.best.count and (validate_every is None or checkpoint.every % validate_every):
        yield (
            f"checkpoint.keep.best compares validation losses, so that checkpoint.every ({checkpoint.every}) must be a "
            f"multiple of {key} ({validate_every}): change one of them, or remove checkpoint.keep.best."
        )


def _stop_errors(config: Config) -> Iterator[str]:
    if config.train.stop is not None and config.train.validate_every is None:
        yield "train.stop needs train.validate_every: it follows a validation loss."

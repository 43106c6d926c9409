"""Run that provides the initial weights (`train.init_from`): locate and check it. Does not import torch."""

from __future__ import annotations

from pathlib import Path

from megaptm.config import Config, resolve, resolve_model
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.other_run import OtherRun
from megaptm.spec import ModelSpec
from megaptm.spec.adaptation import find_difference
from megaptm.tokenizers import Tokenizer


def initial_run(config: Config) -> OtherRun | None:
    """Return the run that provides the initial weights, or None."""
    if config.train.init_from is None:
        return None
    return OtherRun("train.init_from", Path(config.train.init_from), "train.init_step", config.train.init_step)


def check_initial(config: Config, tokenizer: Tokenizer | None) -> None:
    """Raise `UserError` if a new run cannot start from `train.init_from`.

    Reasons: it has no checkpoint, its model differs in more than `spec.adaptation` allows, or its tokenizer differs
    from `tokenizer`, which is None if no corpus has one.
    """
    if (initial := initial_run(config)) is None or last_saved_step(Path(config.run)) > 0:
        return
    initial.check()
    spec = resolve_model(config)
    if difference := initial.find_difference(spec):
        source = resolve(initial.config)
        if isinstance(source, ModelSpec) and spec.name != source.name:
            difference = find_difference(spec, source)
    if difference is not None:
        name, expected, actual = difference
        raise UserError(
            f"train.init_from ({initial.folder}) has another model: its {name} is {actual}, the config's is "
            f"{expected}; set model to that shape, or leave train.init_from out."
        )
    if tokenizer is not None:
        initial.check_tokenizer(tokenizer)

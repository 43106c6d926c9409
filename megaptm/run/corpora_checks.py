"""Early checks of a run's corpora, before all processes start. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from megaptm.config import Config
from megaptm.config.changes import find_changes, is_data_change
from megaptm.config.custom_optimizer import load_custom_rule
from megaptm.config.learning_rate import learning_rate_at
from megaptm.config.phases import phase_end
from megaptm.config.read import phase_configs
from megaptm.config.sections.data import CursorsConfig
from megaptm.data import Mix
from megaptm.errors import UserError
from megaptm.run.corpora import RunCorpora
from megaptm.run.hooks import run_hooks
from megaptm.run.initial import check_initial_run
from megaptm.tokenizers import Tokenizer


def check_corpora(config: Config) -> None:
    """Check the corpora of a run and of its later phases early, for errors that would otherwise occur after all
    processes have started, or at the first validation."""
    fingerprints = set()
    for phase in positioned_phases(config):
        try:
            fingerprints.add(_check_phase(phase).fingerprint)
            if len(fingerprints) > 1:
                raise UserError(
                    "data.mix has corpora with another tokenizer than those before: build them with the same one."
                )
        except UserError as error:
            if phase is config:
                raise
            raise UserError(f"phases, after step {phase.train.phase_start:,}: {error}") from None


def positioned_phases(config: Config) -> Iterator[Config]:
    """Yield the config of each phase of a run, from the present one on, with the position from which it will read."""
    present, *later = phase_configs(config)
    yield present
    for phase in later:
        start = phase.train.phase_start
        cursors = present.data.cursors
        if any(is_data_change(each.key) for each in find_changes(present, phase, start)):
            sample = present.batch_schedule.first_sample(start)
            read = RunCorpora(present).mix("train").samples_read(sample)
            cursors = CursorsConfig(step=start, sample=sample, read=read)
        present = phase.model_copy(update={"data": phase.data.model_copy(update={"cursors": cursors})})
        yield present


def _check_phase(config: Config) -> Tokenizer:
    if config.optimizer.is_custom:
        load_custom_rule(config.optimizer.name)
    for step in (config.train.phase_start, config.train.steps - 1):
        learning_rate_at(config, step)  # after the warm-up it imports a schedule of the user
    corpora = RunCorpora(config)
    for hook in run_hooks(config):
        hook.check(config, corpora.tokenizer)
    if config.train.init_from is not None:
        check_initial_run(config, corpora.tokenizer)
    if config.built_objective.unit == "pairs":  # the number of pairs is only known after counting
        corpora.check()
        return corpora.tokenizer
    mixes = {split: corpora.mix(split) for split in ("train", "validation")}
    check_epochs(config, mixes["train"])
    mixes["validation"].fresh_batches(config.train.batch)
    corpora.validation_mixes()
    for hook in run_hooks(config):
        hook.check_samples(config, mixes)
    return corpora.tokenizer


def check_epochs(config: Config, mix: Mix) -> None:
    """Raise `UserError` if the steps of a run, up to the end of its present phase, need more text than `data.epochs`
    and `max_epochs` of corpora allow."""
    epochs, end = config.data.epochs, phase_end(config, config.train.phase_start)
    key = "train.steps" if end == config.train.steps else "`until` of a phase"
    if mix.end < math.inf and end > (max_steps := config.batch_schedule.steps_in(int(mix.end))):
        raise UserError(
            f"{key} ({end:,}) is more than {max_steps:,}, after which all corpora of a task in data.mix were read "
            f"max_epochs times: lower {key}, raise max_epochs, or leave it out for one of them."
        )
    if epochs is not None and end > (max_steps := config.batch_schedule.steps_in(mix.samples_in(epochs))):
        raise UserError(
            f"{key} ({end:,}) is more than {max_steps:,}, the steps for which data.mix has text in "
            f"{epochs} epoch{'s' if epochs > 1 else ''} (data.epochs): lower {key}, raise data.epochs, or leave "
            "data.epochs out."
        )

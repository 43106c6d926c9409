"""Early checks of a run's corpora, before all processes start. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

from megaptm.config import Config
from megaptm.data import Mix
from megaptm.data.teacher_logits import TeacherLogitsMix
from megaptm.errors import UserError
from megaptm.run.corpora import RunCorpora
from megaptm.run.initial import check_initial
from megaptm.run.teacher import check_teacher, teacher_logits


def check_corpora(config: Config) -> None:
    """Raise errors early that would otherwise occur after all processes have started, or at the first validation."""
    corpora = RunCorpora(config)
    if config.distill is not None:
        check_teacher(config, corpora.tokenizer)
    if config.train.init_from is not None:
        check_initial(config, corpora.tokenizer)
    if config.built_objective.unit == "pairs":  # the number of pairs is only known after counting
        corpora.check()
        return
    mixes = {split: corpora.mix(split) for split in ("train", "validation")}
    check_epochs(config, mixes["train"])
    mixes["validation"].fresh_batches(config.train.batch)
    check_cached_logits(config, mixes)


def check_cached_logits(config: Config, mixes: Mapping[str, Mix]) -> None:
    """Raise `UserError` if cached teacher logits are read and lack the first or last sample of a split."""
    if config.distill is None or config.distill.cached_logits is None:
        return
    logits, train = teacher_logits(config), config.train
    held_out = min(train.validate_batches, mixes["validation"].fresh_batches(train.batch)) * train.batch
    for split, samples in (("train", config.batch_schedule.first_sample(train.steps)), ("validation", held_out)):
        mix = TeacherLogitsMix(mixes[split], logits.split(split))
        for sample in (0, samples - 1):
            mix.sample(sample)


def check_epochs(config: Config, mix: Mix) -> None:
    """Raise `UserError` if the steps need more text than `data.epochs` allows."""
    epochs, train = config.data.epochs, config.train
    if epochs is not None and train.steps > (max_steps := config.batch_schedule.steps_in(mix.samples_in(epochs))):
        raise UserError(
            f"train.steps ({train.steps:,}) is more than {max_steps:,}, the steps for which data.mix has text in "
            f"{epochs} epoch{'s' if epochs > 1 else ''} (data.epochs): lower train.steps, raise data.epochs, or leave "
            "data.epochs out."
        )

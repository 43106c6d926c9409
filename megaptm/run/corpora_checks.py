"""Early checks of a run's corpora, before all processes start. Does not import torch."""

from __future__ import annotations

from megaptm.config import Config
from megaptm.config.phases import phase_end
from megaptm.config.read import phase_configs
from megaptm.data import Mix
from megaptm.errors import UserError
from megaptm.run.corpora import RunCorpora
from megaptm.run.hooks import run_hooks
from megaptm.run.initial import check_initial
from megaptm.tokenizers import Tokenizer


def check_corpora(config: Config) -> None:
    """Check the corpora of a run and of its later phases early, for errors that would otherwise occur after all
    processes have started, or at the first validation."""
    present, *later = phase_configs(config)
    tokenizer = _check_phase(present)
    for phase in later:
        try:
            if _check_phase(phase).fingerprint != tokenizer.fingerprint:
                raise UserError(
                    "data.mix has corpora with another tokenizer than those before: build them with the same one."
                )
        except UserError as error:
            raise UserError(f"phases, after step {phase.train.phase_start:,}: {error}") from None


def _check_phase(config: Config) -> Tokenizer:
    corpora = RunCorpora(config)
    for hook in run_hooks(config):
        hook.check(config, corpora.tokenizer)
    if config.train.init_from is not None:
        check_initial(config, corpora.tokenizer)
    if config.built_objective.unit == "pairs":  # the number of pairs is only known after counting
        corpora.check()
        return corpora.tokenizer
    mixes = {split: corpora.mix(split) for split in ("train", "validation")}
    check_epochs(config, mixes["train"])
    mixes["validation"].fresh_batches(config.train.batch)
    for hook in run_hooks(config):
        hook.check_samples(config, mixes)
    return corpora.tokenizer


def check_epochs(config: Config, mix: Mix) -> None:
    """Raise `UserError` if the steps of a run, or of its present phase, need more text than `data.epochs` allows.

    What a later phase reads again is known only when it begins.
    """
    epochs, start = config.data.epochs, config.train.phase_start
    if epochs is None or (start and config.data.cursors is None):
        return
    end = phase_end(config, start)
    if end > (max_steps := config.batch_schedule.steps_in(mix.samples_in(epochs))):
        key = "train.steps" if end == config.train.steps else "`until` of a phase"
        raise UserError(
            f"{key} ({end:,}) is more than {max_steps:,}, the steps for which data.mix has text in "
            f"{epochs} epoch{'s' if epochs > 1 else ''} (data.epochs): lower {key}, raise data.epochs, or leave "
            "data.epochs out."
        )

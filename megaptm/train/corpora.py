"""The corpora of a run, opened and compared with its model and with each other. No torch: the launcher asks, too."""

from __future__ import annotations

from pathlib import Path

from megaptm.config import Config, resolve_model
from megaptm.data import Mix, open_mix, read_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer


def check_corpora(config: Config) -> None:
    """Raise now what would otherwise be raised when all processes have started, or at the first validation."""
    tokenizer = corpus_tokenizer(config)
    _check_epochs(config, open_corpora(config, tokenizer, "train"))
    open_corpora(config, tokenizer, "validation").fresh_batches(config.train.batch)


def _check_epochs(config: Config, mix: Mix) -> None:
    """With a number of `data.epochs` the steps must not outlast the text."""
    epochs, train = config.data.epochs, config.train
    if epochs is not None and train.steps > (most := mix.samples_in(epochs) // train.batch):
        raise UserError(
            f"train.steps ({train.steps:,}) is more than the {most:,} steps that data.mix has text for when none is "
            f"read more than {epochs} time{'s' if epochs > 1 else ''} (data.epochs): lower train.steps, raise "
            "data.epochs, or leave data.epochs out."
        )


def open_corpora(config: Config, tokenizer: Tokenizer, split: str) -> Mix:
    """The mix of `train` or `validation`."""
    return open_mix(
        config.data.mix,
        split=split,
        objective=config.objective,
        sequence=config.data.sequence,
        seed=config.train.seed,
        document_mask=config.data.document_mask,
        special=tokenizer.special,
        verify=config.data.verify,
    )


def corpus_tokenizer(config: Config) -> Tokenizer:
    """The tokenizer in the mix's first corpus; it must be the one the corpus was made with, and fit the model."""
    folder, vocabulary = next(iter(config.data.mix)), resolve_model(config).vocabulary
    manifest = read_manifest(Path(folder).expanduser())
    path = Path(folder).expanduser() / "tokenizer"
    tokenizer = load_tokenizer(path)
    if tokenizer.fingerprint != manifest.tokenizer["fingerprint"]:
        raise UserError(
            f"{path} is not the tokenizer that its corpus was made with: put that one back, or build the corpus again."
        )
    if tokenizer.vocabulary > vocabulary:
        raise UserError(
            f"model.vocabulary ({vocabulary:,}) is less than the {tokenizer.vocabulary:,} ids of the tokenizer of "
            f"{folder}: set model.vocabulary={tokenizer.vocabulary}, or build the corpus with a smaller tokenizer."
        )
    return tokenizer

"""What a run reads: its tokenizer, its mixes, and the micro-batches of each step for this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from megaptm.config import Config
from megaptm.data import Loader, Mix, open_mix, validation_batches
from megaptm.errors import UserError
from megaptm.parallel.groups import Ranks
from megaptm.spec import ModelSpec
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer

Batches = list[dict[str, Tensor]]


class Feed:
    """Micro-batches for one process; `None`s where tensor rank 0 reads and this rank is sent what it read."""

    def __init__(self, config: Config, spec: ModelSpec, ranks: Ranks) -> None:
        self.config = config
        self.ranks = ranks
        self.tokenizer = corpus_tokenizer(config, spec)
        self.train = self._open("train")
        self.validation = self._open("validation")
        self._loader: Loader | None = None

    @property
    def reads(self) -> bool:
        return self.ranks.tensor == 0

    def steps(self, start: int) -> Iterator[Batches | None]:
        """Each step's micro-batches, from step `start` on, without end."""
        if not self.reads:
            while True:
                yield None
        self._loader = Loader(
            self.train,
            start_step=start,
            batch=self.config.train.batch,
            microbatch=self.config.layout.microbatch,
            rank=self.ranks.data,
            ranks=self.ranks.data_size,
            workers=self.config.data.workers,
            pin=torch.cuda.is_available(),
        )
        for _, batches in self._loader:
            yield [self._plain(batch) for batch in batches]

    def held_out(self) -> Iterator[Batches | None]:
        """The validation batches, the same at each call."""
        batches = validation_batches(
            self.validation,
            batch=self.config.train.batch,
            microbatch=self.config.layout.microbatch,
            rank=self.ranks.data,
            ranks=self.ranks.data_size,
            most=self.config.train.validate_batches,
        )
        for micro_batches in batches:
            yield [self._plain(batch) for batch in micro_batches] if self.reads else None

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _open(self, split: str) -> Mix:
        return open_mix(
            self.config.data.mix,
            split=split,
            objective=self.config.objective,
            sequence=self.config.data.sequence,
            seed=self.config.train.seed,
            document_mask=self.config.data.document_mask,
            special=self.tokenizer.special,
            verify=self.config.data.verify,
        )

    def _plain(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows known to be one document without padding go without document numbers: attention's fast path."""
        if self.config.data.document_mask or self.config.objective != "causal-lm":
            return batch
        return {name: field for name, field in batch.items() if name != "documents"}


def corpus_tokenizer(config: Config, spec: ModelSpec) -> Tokenizer:
    """The tokenizer in the mix's first corpus; it must fit the model's table."""
    folder = next(iter(config.data.mix))
    path = Path(folder).expanduser() / "tokenizer"
    if not path.is_dir():
        raise UserError(f"data.mix: {folder} is not a corpus: build one with `megaptm corpus build`.")
    tokenizer = load_tokenizer(path)
    if tokenizer.vocabulary > spec.vocabulary:
        raise UserError(
            f"model.vocabulary ({spec.vocabulary:,}) is less than the {tokenizer.vocabulary:,} ids of the tokenizer of "
            f"{folder}: set model.vocabulary={tokenizer.vocabulary}, or build the corpus with a smaller tokenizer."
        )
    return tokenizer

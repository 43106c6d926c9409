"""Text vectors: outputs of the last layer of a model's first stack."""

# N texts, B texts per batch, S tokens of the longest, D width

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.errors import UserError
from megaptm.inference.prompt import text_batch
from megaptm.inference.trained_model import TrainedModel

POOLS = ("mean", "first", "last", "none")


def encode_texts(loaded: TrainedModel, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
    """Encode texts as vectors [N, D], or [N, S, D] with pool `none`, float32 on the CPU; see `LoadedModel.encode`."""
    check_encode_options(pool, batch)
    texts = [texts] if isinstance(texts, str) else texts
    if not loaded.spec.family.reads_text:
        raise UserError(f"{loaded.folder} is a model of {loaded.spec.name}, which reads no text.")
    rows = [_encode_text(loaded, text, index) for index, text in enumerate(texts)]
    if not rows:
        raise UserError("texts is empty: give at least one text.")
    starts = range(0, len(rows), batch)
    return pool_states([x_SD for start in starts for x_SD in _hidden_states(loaded, rows[start : start + batch])], pool)


def pool_states(hidden: Sequence[Tensor], pool: str) -> Tensor:
    """Pool hidden states [S, D] of each text to vectors [N, D], or [N, S, D] with pool `none`."""
    if pool == "none":
        longest = max(map(len, hidden))
        return torch.stack([F.pad(x_SD, (0, 0, 0, longest - len(x_SD))) for x_SD in hidden])
    if pool == "mean":
        return torch.stack([x_SD.mean(0) for x_SD in hidden])
    return torch.stack([x_SD[0 if pool == "first" else -1] for x_SD in hidden])


def check_encode_options(pool: str, batch: int) -> None:
    """Raise UserError for invalid options of `LoadedModel.encode`."""
    if pool not in POOLS:
        raise UserError(f"pool ({pool}) must be one of {', '.join(POOLS)}.")
    if batch < 1:
        raise UserError(f"batch ({batch}) must be 1 or more.")


def _encode_text(loaded: TrainedModel, text: str, index: int) -> list[int]:
    """Return the ids of a text to encode with the special tokens of training."""
    tokenizer = loaded.tokenizer
    ids = loaded.config.built_objective.add_special_tokens(tokenizer.encode(text).tolist(), tokenizer.special)
    if not ids:
        raise UserError(f"texts[{index}] is empty: remove it, or give a text.")
    if loaded.spec.max_text_length is not None and len(ids) > loaded.spec.max_text_length:
        raise UserError(
            f"texts[{index}] has {len(ids)} tokens, more than the {loaded.spec.max_text_length} that the model reads: "
            "shorten or split it."
        )
    return ids


def _hidden_states(loaded: TrainedModel, rows: list[list[int]]) -> list[Tensor]:
    """Return the hidden states [S, D] of each sequence, with its own length."""
    with torch.no_grad():  # not inference mode: the result may be used to train a classifier
        x_BSD = loaded.model.encode(text_batch(loaded, rows)).float().cpu()
    return [x_SD[: len(row)] for x_SD, row in zip(x_BSD, rows, strict=True)]

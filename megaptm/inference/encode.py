"""Text vectors: outputs of the last layer of a model's first stack."""

# N texts, B texts per batch, S tokens of the longest, D width

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.errors import UserError
from megaptm.inference.image_text import text_vectors
from megaptm.inference.loaded_model import LoadedModel
from megaptm.inference.prompt import fields_of_texts
from megaptm.inference.words_by_characters import layers_of_words

POOLS = ("mean", "first", "last", "none")


def encode(loaded: LoadedModel, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
    """Return [N, D], or [N, S, D] with pool `none`, float32 on the CPU; see `LoadedModel.encode`."""
    if pool not in POOLS:
        raise UserError(f"pool ({pool}) must be one of {', '.join(POOLS)}.")
    if batch < 1:
        raise UserError(f"batch ({batch}) must be 1 or more.")
    texts = [texts] if isinstance(texts, str) else texts
    if loaded.spec.family.reads_images and loaded.spec.family.has_tokens:
        return text_vectors(loaded, texts, batch=batch)
    if loaded.spec.family.reads_images:
        raise UserError(f"{loaded.folder} is of {loaded.spec.name}, which reads images: it has no vectors of texts.")
    if loaded.spec.family.reads_characters:
        hidden = [one_LSD.mean(0) for one_LSD in layers_of_words(loaded, texts, batch=batch)]
    else:
        rows = [_ids(loaded, text, number) for number, text in enumerate(texts)]
        if not rows:
            raise UserError("texts is empty: give at least one.")
        hidden = [one for at in range(0, len(rows), batch) for one in _hidden(loaded, rows[at : at + batch])]
    if pool == "none":
        longest = max(map(len, hidden))
        return torch.stack([F.pad(one_SD, (0, 0, 0, longest - len(one_SD))) for one_SD in hidden])
    return torch.stack([_pooled(one_SD, pool) for one_SD in hidden])


def _ids(loaded: LoadedModel, text: str, number: int) -> list[int]:
    """Return the ids of a text with the special tokens of training."""
    tokenizer = loaded.tokenizer
    ids = loaded.config.built_objective.with_special_tokens(tokenizer.encode(text).tolist(), tokenizer.special)
    if not ids:
        raise UserError(f"texts[{number}] is empty: a model says nothing of no text.")
    if loaded.spec.longest is not None and len(ids) > loaded.spec.longest:
        raise UserError(
            f"texts[{number}] has {len(ids)} tokens, the model reads {loaded.spec.longest}: shorten it, or cut it up."
        )
    return ids


def _hidden(loaded: LoadedModel, rows: list[list[int]]) -> list[Tensor]:
    """Return [S, D] of each sequence, with its own length."""
    with torch.no_grad():  # not inference mode: the result may be used to train a classifier
        x_BSD = loaded.model.encode(fields_of_texts(loaded, rows)).float().cpu()
    return [one_SD[: len(row)] for one_SD, row in zip(x_BSD, rows, strict=True)]


def _pooled(one_SD: Tensor, pool: str) -> Tensor:
    if pool == "mean":
        return one_SD.mean(0)
    return one_SD[0 if pool == "first" else -1]

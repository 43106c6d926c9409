"""A tiny model of each family, and a labeled batch for it."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.models import Model, build_model, fill
from megaptm.spec import ModelSpec, Size

FAMILIES = tuple(CATALOGUE)
VOCABULARY = 101


def tiny_spec(family: str, *, layers: int = 2, dropout: float = 0.0) -> ModelSpec:
    """Width 32, 4 heads; T5's heads together are wider than the model, as in its 3B."""
    size = Size(layers=layers, width=32, heads=4, ffn=64, head_width=16 if family == "t5" else None)
    return ModelSpec(family=CATALOGUE[family], size=size, vocabulary=VOCABULARY, context=24, dropout=dropout)


def tiny_model(family: str, *, layers: int = 2, dropout: float = 0.0, noise: float = 0.1) -> Model:
    """In eval mode. Weights are moved away from their initial values, so that no bias is 0 and no norm 1."""
    model = build_model(tiny_spec(family, layers=layers, dropout=dropout))
    fill(model, seed=7)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            shift = torch.randn(parameter.shape, generator=generator) * noise
            parameter += shift
            if len(parameter) == model.spec.padded_vocabulary:
                parameter[VOCABULARY:] = 0
    return model.eval()


def tiny_batch(family: str, *, rows: int = 3, sequence: int = 12, target: int = 7, seed: int = 0) -> dict[str, Tensor]:
    """Rows of one document and, from the second row on, some padding at the end."""
    generator = torch.Generator().manual_seed(seed)

    def ids(length: int, high: int = VOCABULARY) -> Tensor:
        return torch.randint(1, high, (rows, length), generator=generator)

    def documents(length: int) -> Tensor:
        kept = length - 2 * torch.arange(rows)[:, None]
        return (torch.arange(length)[None] < kept).long()

    batch = {"tokens": ids(sequence), "document_ids": documents(sequence)}
    if family == "t5":
        batch |= {"decoder_tokens": ids(target), "decoder_document_ids": documents(target)}
        batch["labels"] = ids(target).masked_fill(batch["decoder_document_ids"] == 0, -100)
    elif family == "bert":
        batch["segments"] = ids(sequence, high=3) - 1
        batch["masked_positions"] = torch.tensor([[1, 4, 9], [2, 0, 0], [5, 3, 0]])[:rows]
        batch["labels"] = ids(3).masked_fill(batch["masked_positions"] == 0, -100)
        batch["next_sentence"] = torch.tensor([0, 1, 1])[:rows]
    else:
        batch["labels"] = ids(sequence).masked_fill(batch["document_ids"] == 0, -100)
    return batch


def mean_losses(losses: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    """The sum over losses of their mean over labels."""
    return torch.stack([loss / count for loss, count in losses.values()]).sum()

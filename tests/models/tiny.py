"""A tiny model of each family, and a labeled batch for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.common.batches import (
    TokenSampler,
    family_size_options,
    make_input_fields,
    make_label_fields,
    sample_classes,
    small_patterns,
)
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import find_counterpart
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import Family, ModelSpec, Size

FAMILIES = tuple(CATALOGUE)
VOCABULARY = 101
SIZE_OPTIONS = {
    "gpt1": {"ffn": 128},  # fixed in Hugging Face
    **{
        name: {"head_width": 16} for name in ("palm", "qwen3", "t5", "t5-v1.1", "mt5")
    },  # heads wider than the model, as in T5 3B
}
"""Size options of families whose tiny models differ from those of the other families."""


def last_prefix(family: str) -> str:
    """Return the prefix of the fields of the last stack."""
    return [*CATALOGUE[family].prefixes.values()][-1]


def has_counterpart(family: str, *, with_decoder: bool = True) -> bool:
    """Whether Hugging Face has an equivalent model. It has no mask decoder, which `with_decoder` requires."""
    if with_decoder and any(block != block.for_encoding for block in CATALOGUE[family].stacks.values()):
        return False
    try:
        find_counterpart(tiny_spec(family))
    except UserError:
        return False
    return True


def scaffold_sizes(table: Family, narrow: Size) -> dict[str, Size]:
    """Return the sizes of stacks that only pre-training uses, if they were published narrower than the others."""
    size = next(iter(table.sizes.values()))
    return {stack: narrow for stack in table.sampling_only_stacks if size.stacks[stack].width < size.width}


def tiny_size_options(table: Family) -> dict[str, Any]:
    """Return size options of a tiny model that not all families have."""
    return family_size_options(table, embedding=16, band=5)


def tiny_spec(family: str, *, layers: int = 2, dropout: float = 0.0) -> ModelSpec:
    """Return a spec of width 32 with 4 heads. A generator that was published narrower is half as wide."""
    table = small_patterns(CATALOGUE[family], window=(4, 6), block=4, chunk=24, hashed_chunk=24)
    narrow = Size(layers=layers, width=16, heads=2, ffn=32)
    options = {"ffn": 64} | tiny_size_options(table) | SIZE_OPTIONS.get(family, {})
    size = Size(layers=layers, width=32, heads=4, **options, stacks=scaffold_sizes(table, narrow))
    return ModelSpec(family=table, size=size, vocabulary=VOCABULARY, context=24, dropout=dropout)


def tiny_model(family: str, *, layers: int = 2, dropout: float = 0.0, noise: float = 0.1) -> Model:
    """Return a model in eval mode, with noise added to its initial weights, so that no bias is 0 and no norm 1."""
    model = Model(tiny_spec(family, layers=layers, dropout=dropout))
    init_weights(model, seed=7)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            shift = torch.randn(parameter.shape, generator=generator) * noise
            parameter += shift
            if name.startswith(("embed.", "head.")) and len(parameter) == model.spec.padded_vocabulary:
                parameter[VOCABULARY:] = 0
    return model.eval()


def tiny_batch(family: str, *, rows: int = 3, sequence: int = 12, target: int = 7, seed: int = 0) -> dict[str, Tensor]:
    """Return samples of one document each. From the second sample on there is some padding at the end."""
    table = CATALOGUE[family]
    # Never the pad token: some models of Hugging Face derive positions from it.
    draw = TokenSampler(torch.Generator().manual_seed(seed), VOCABULARY, min_id=max(1, table.embedding.first_position))

    def documents(length: int) -> Tensor:
        lengths = length - 2 * torch.arange(rows)[:, None]
        return (torch.arange(length)[None] < lengths).long()

    def target_positions() -> tuple[Tensor, Tensor]:
        positions = torch.tensor([[1, 4, 9], [2, 0, 0], [5, 3, 0]])[:rows]
        return positions, positions > 0

    lengths = zip(dict.fromkeys(table.prefixes.values()), (sequence, target), strict=False)
    batch = make_input_fields(table, {prefix: documents(length) for prefix, length in lengths}, draw)
    if table.segments:
        batch["segments"] = draw.classes(table.segments, rows, sequence)
    for name, tasks in sample_classes(table).items():
        batch[name] = draw.classes(tasks, rows)
    labels = torch.tensor([0, 1, 1])[:rows]
    return batch | make_label_fields(table, batch, draw, positions=target_positions, row_labels=lambda head: labels)


def mean_losses(losses: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    """Return the sum of the losses, each averaged over its labels."""
    return torch.stack([loss / count for loss, count in losses.values()]).sum()

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
    small_patterns,
)
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import find_counterpart
from megaptm.models import Model, build_model, fill
from megaptm.models.loss import Loss
from megaptm.spec import Family, ModelSpec, Size

FAMILIES = tuple(CATALOGUE)
VOCABULARY = 101
SHAPES = {
    "gpt1": {"ffn": 128},  # Hugging Face's has no other
    **{name: {"head_width": 16} for name in ("palm", "t5", "t5-v1.1", "mt5")},  # wider than the model, as in T5's 3B
}
"""Numbers of a tiny model that is compared with Hugging Face's, where a family has others than most."""


def last_prefix(family: str) -> str:
    """What the fields of the stack that is read last begin with."""
    return [*CATALOGUE[family].prefixes.values()][-1]


def has_counterpart(family: str, *, with_decoder: bool = True) -> bool:
    """Whether Hugging Face has a model that computes the same. It has no mask decoder: `with_decoder` asks for one."""
    if with_decoder and any(block != block.for_encoding for block in CATALOGUE[family].stacks.values()):
        return False
    try:
        find_counterpart(tiny_spec(family))
    except UserError:
        return False
    return True


def generators(table: Family, narrow: Size) -> dict[str, Size]:
    """Stacks that serve pre-training alone, narrower than the others where they were published so."""
    size = next(iter(table.sizes.values()))
    return {stack: narrow for stack in table.scaffolds if size.stacks[stack].width < size.width}


def tiny_numbers(table: Family) -> dict[str, Any]:
    """Of a tiny size, where the family has others than most."""
    return family_size_options(table, embedding=16, band=5)


def tiny_spec(family: str, *, layers: int = 2, dropout: float = 0.0) -> ModelSpec:
    """Width 32, 4 heads; a generator half as wide where it was published narrower."""
    table = small_patterns(CATALOGUE[family], window=(4, 6), block=4, chunk=24, hashed_chunk=24)
    narrow = Size(layers=layers, width=16, heads=2, ffn=32)
    numbers = {"ffn": 64} | tiny_numbers(table) | SHAPES.get(family, {})
    size = Size(layers=layers, width=32, heads=4, **numbers, stacks=generators(table, narrow))
    return ModelSpec(family=table, size=size, vocabulary=VOCABULARY, context=24, dropout=dropout)


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
    table = CATALOGUE[family]
    # Never the pad token, by which some models of Hugging Face's know places.
    draw = TokenSampler(torch.Generator().manual_seed(seed), VOCABULARY, min_id=max(1, table.first_position))

    def documents(length: int) -> Tensor:
        kept = length - 2 * torch.arange(rows)[:, None]
        return (torch.arange(length)[None] < kept).long()

    def places() -> tuple[Tensor, Tensor]:
        at = torch.tensor([[1, 4, 9], [2, 0, 0], [5, 3, 0]])[:rows]
        return at, at > 0

    lengths = zip(dict.fromkeys(table.prefixes.values()), (sequence, target), strict=False)
    batch = make_input_fields(table, {prefix: documents(length) for prefix, length in lengths}, draw)
    if "segment" in table.inputs:
        batch["segments"] = draw.classes(table.segments, rows, sequence)
    if "task" in table.inputs:
        batch["task_ids"] = draw.classes(table.tasks, rows)
    answers = torch.tensor([0, 1, 1])[:rows]
    return batch | make_label_fields(table, batch, draw, positions=places, row_labels=lambda brick: answers)


def distilled_losses(student: Model, teacher: Model | None, batch: dict[str, Tensor]) -> dict[str, Loss]:
    """Return the losses of a student: of its heads, and with respect to the teacher if there is one."""
    output = student(batch)
    if student.distill is None:
        return output.losses
    return output.losses | student.distill.losses(student, output.states, teacher, batch)


def mean_losses(losses: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    """The sum over losses of their mean over labels."""
    return torch.stack([loss / count for loss, count in losses.values()]).sum()

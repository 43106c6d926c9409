"""A tiny model of each family, and a labeled batch for it."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.bricks import HEADS
from megaptm.bricks.heads import TokenClassHeadBrick
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import counterpart_of
from megaptm.models import Model, build_model, fill
from megaptm.spec import Family, ModelSpec, Size

FAMILIES = tuple(CATALOGUE)
VOCABULARY = 101
NUMBERS = {
    "albert": {"embedding": 16},
    "gpt1": {"ffn": 128},  # Hugging Face's has no other
    "gpt3-banded": {"band": 5},
    "palm": {"head_width": 16, "kv_heads": 1},
    **{name: {"head_width": 16} for name in ("t5", "t5-v1.1", "mt5")},  # together wider than the model, as in T5's 3B
}
"""Of a tiny model, where they differ from family to family."""


def last_prefix(family: str) -> str:
    """What the fields of the stack that is read last begin with."""
    return [*CATALOGUE[family].prefixes.values()][-1]


def has_counterpart(family: str, *, with_decoder: bool = True) -> bool:
    """Whether Hugging Face has a model that computes the same. It has no mask decoder: `with_decoder` asks for one."""
    if with_decoder and any(block.last_layer == "mask-decoder" for block in CATALOGUE[family].stacks.values()):
        return False
    try:
        counterpart_of(tiny_spec(family))
    except UserError:
        return False
    return True


def generators(table: Family, narrow: Size) -> dict[str, Size]:
    """Stacks that serve pre-training alone, narrower than the others where they were published so."""
    size = next(iter(table.sizes.values()))
    return {stack: narrow for stack in table.scaffolds if size.stacks[stack].width < size.width}


def tiny_spec(family: str, *, layers: int = 2, dropout: float = 0.0) -> ModelSpec:
    """Width 32, 4 heads; a generator half as wide where it was published narrower."""
    table = CATALOGUE[family]
    narrow = Size(layers=layers, width=16, heads=2, ffn=32)
    numbers = {"ffn": 64} | NUMBERS.get(family, {})
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
    generator = torch.Generator().manual_seed(seed)
    table = CATALOGUE[family]

    def ids(length: int) -> Tensor:
        # Never the pad token, by which some models of Hugging Face's know places.
        return torch.randint(max(1, table.first_position), VOCABULARY, (rows, length), generator=generator)

    def documents(length: int) -> Tensor:
        kept = length - 2 * torch.arange(rows)[:, None]
        return (torch.arange(length)[None] < kept).long()

    lengths = dict(zip(dict.fromkeys(table.prefixes.values()), (sequence, target), strict=False))
    batch: dict[str, Tensor] = {}
    for prefix, length in lengths.items():
        batch |= {f"{prefix}tokens": ids(length), f"{prefix}document_ids": documents(length)}
    if "segment" in table.inputs:
        batch["segments"] = torch.randint(table.segments, (rows, sequence), generator=generator)
    if "task" in table.inputs:
        batch["task_ids"] = torch.randint(table.tasks, (rows,), generator=generator)
    if any(block.visibility == "ordered" for block in table.stacks.values()):
        # A prefix that all see, and then each what is before it.
        batch["order"] = (torch.arange(sequence) - sequence // 3).clamp(min=0).expand(rows, -1).clone()
    for head in table.heads:
        if head == "lm":
            seen = batch[f"{last_prefix(family)}document_ids"]
            batch["labels"] = ids(seen.shape[1]).masked_fill(seen == 0, -100)
        elif head == "mlm":
            batch["masked_positions"] = torch.tensor([[1, 4, 9], [2, 0, 0], [5, 3, 0]])[:rows]
            batch["labels"] = ids(3).masked_fill(batch["masked_positions"] == 0, -100)
            if table.drawn:
                batch["draws"] = torch.rand(rows, 3, generator=generator)
        elif head == "span-boundary":
            batch |= boundaries(rows, ids(3))
        elif issubclass(HEADS[head], TokenClassHeadBrick):  # asks of each token
            asked = torch.randint(HEADS[head].classes, (rows, sequence), generator=generator)
            batch[HEADS[head].answers] = asked.masked_fill(batch["document_ids"] == 0, -100)
        elif head == "replaced-token":
            batch["replaced"] = torch.where(batch["document_ids"] > 0, 0, -100)
        else:
            batch[HEADS[head].answers] = torch.tensor([0, 1, 1])[:rows]
    return batch


def boundaries(rows: int, labels: Tensor) -> dict[str, Tensor]:
    """Two places of a span, and one of another, which is not asked about in every second row."""
    unasked = torch.arange(rows)[:, None] % 2 * torch.tensor([0, 0, 1])
    return {
        "span_left": torch.tensor([2, 2, 5]).repeat(rows, 1) * (1 - unasked),
        "span_right": torch.tensor([5, 5, 7]).repeat(rows, 1) * (1 - unasked),
        "span_offset": torch.tensor([0, 1, 0]).repeat(rows, 1),
        "span_labels": labels.masked_fill(unasked == 1, -100),
    }


def mean_losses(losses: dict[str, tuple[Tensor, Tensor]]) -> Tensor:
    """The sum over losses of their mean over labels."""
    return torch.stack([loss / count for loss, count in losses.values()]).sum()

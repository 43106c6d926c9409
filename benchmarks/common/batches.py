"""A batch of any family as benchmarks and tests feed it to a model: the fields that its stacks read, and those that its
heads ask for; and the numbers of a size that some families have and others do not."""

# B samples, S positions of a sample, K target positions

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.bricks import HEADS, HeadBrick
from megaptm.bricks.heads import SpanBoundaryHeadBrick, TokenClassHeadBrick
from megaptm.spec import Block, Family, LSHSpec, Reading, change, with_attention_options

Fields = dict[str, Tensor]


def numbers_of(family: Family, *, embedding: int, band: int, memory: int = 0) -> dict[str, Any]:
    """Those of a small size that the family says and most do not: the width of its token table, the places of a band
    and those that are remembered, of those given; its heads of keys, as many as were published; and clusters of a
    hundred words and more."""
    sizes, values = family.sizes.values(), {}
    if all(size.embedding is not None for size in sizes):
        values["embedding"] = embedding
    if any("banded" in block.kinds for block in family.stacks.values()):
        values["band"] = band
    if all(size.cutoffs for size in sizes):
        values |= {"cutoffs": (20, 45, 80), "division": 2}
    if memory and all(size.memory is not None for size in sizes):
        values["memory"] = memory
    if published := {size.kv_heads for size in sizes} - {None}:
        values["kv_heads"] = min(published)
    return values


def small_patterns(
    family: Family, *, window: int | tuple[int, ...], block: int, chunk: int, hashed_chunk: int
) -> Family:
    """Return the family with windows, blocks and chunks that are small enough for short samples."""
    options: dict[str, Any] = {"window": window, "block_size": block, "num_random_blocks": 1, "num_hashes": 2}
    stacks = {
        name: with_attention_options(pattern, options | _chunk_options(pattern, chunk, hashed_chunk))
        for name, pattern in family.stacks.items()
    }
    return change(family, stacks=stacks) if stacks != family.stacks else family


def _chunk_options(block: Block, chunk: int, hashed_chunk: int) -> dict[str, Any]:
    if not (hashed := [record for record in block.attentions if isinstance(record, LSHSpec)]):
        return {}
    lengths = tuple(hashed_chunk if isinstance(record, LSHSpec) else chunk for record in block.attentions)
    return {"chunk_length": lengths, "num_buckets": 4 if isinstance(hashed[0].num_buckets, int) else (2, 4)}


@dataclass(frozen=True)
class Draw:
    """Random tokens, and labels for classification heads."""

    generator: torch.Generator
    vocabulary: int
    lowest: int = 0
    """Smallest sampled id."""

    def tokens(self, *shape: int) -> Tensor:
        return torch.randint(self.lowest, self.vocabulary, shape, generator=self.generator)

    def classes(self, number: int, *shape: int) -> Tensor:
        return torch.randint(number, shape, generator=self.generator)


def read_fields(family: Family, documents: Mapping[str, Tensor], draw: Draw) -> Fields:
    """Tokens of the streams whose documents [B, S] are given by prefix; and who sees whom, where rows say it: a third
    of a row sees itself whole, and then each place what is before it; of what is asked by queries beside the text, each
    place sees what is behind it; and which tokens see all, where some do."""
    fields: Fields = {}
    for prefix, numbers in documents.items():
        fields |= {f"{prefix}tokens": draw.tokens(*numbers.shape), f"{prefix}document_ids": numbers}
        if any(block.ordered for block in family.stacks.values()):
            rows, length = numbers.shape
            order = (torch.arange(length) - length // 3).clamp(min=0)
            if any(block.query_stream for block in family.stacks.values()):
                order = torch.arange(length).flip(0)
            fields[f"{prefix}order"] = order.expand(rows, -1).clone()
        if any(block.segment_scores for block in family.stacks.values()):
            fields[f"{prefix}segments"] = (
                (torch.arange(numbers.shape[1]) * 3 // numbers.shape[1]).expand_as(numbers).clone()
            )
        records = [record for block in family.stacks.values() for record in block.attentions]
        if any(record.kind == "window" or not getattr(record, "edge_blocks", True) for record in records):
            marks = torch.zeros_like(numbers)
            marks[:, 0] = marks[1::2, numbers.shape[1] // 2] = 1
            fields[f"{prefix}global_tokens"] = marks
    return fields


def head_fields(
    family: Family,
    read: Fields,
    draw: Draw,
    *,
    positions: Callable[[], tuple[Tensor, Tensor]],
    answers: Callable[[type[HeadBrick]], Tensor],
) -> Fields:
    """What the family's heads ask of rows with the documents in `read`, nothing of padding. `places` says where a head
    asks that asks about some places, int64 [B, K], and which of these it does, bool [B, K]; `answers` what the rows
    answer, [B], to one that asks about rows."""
    fields: Fields = {}
    for head in family.heads:
        fields |= _fields_of_head(HEADS[head], read[f"{_prefix(family, head)}document_ids"], draw, positions, answers)
    if family.drawn:
        fields["uniforms"] = torch.rand(fields["labels"].shape, generator=draw.generator)
    return fields


def _fields_of_head(
    brick: type[HeadBrick],
    documents: Tensor,
    draw: Draw,
    positions: Callable[[], tuple[Tensor, Tensor]],
    answers: Callable[[type[HeadBrick]], Tensor],
) -> Fields:
    if issubclass(brick, SpanBoundaryHeadBrick):
        return _boundaries(draw.tokens(len(documents), 3))
    if brick.predicted_only:
        at, targets = positions()
        return {"masked_positions": at, brick.answers: draw.tokens(*at.shape).masked_fill(~targets, IGNORED)}
    if brick.judges_draws:
        of_tokens = torch.zeros_like(documents)
    elif brick.projects:
        of_tokens = draw.tokens(*documents.shape)
    elif issubclass(brick, TokenClassHeadBrick):
        of_tokens = draw.classes(brick.classes, *documents.shape)
    else:
        return {brick.answers: answers(brick)}
    return {brick.answers: of_tokens.masked_fill(documents == 0, IGNORED)}


def _prefix(family: Family, head: str) -> str:
    """Return the prefix of the fields of the stack that a head reads."""
    read = family.reads.get(head, next(reversed(family.stacks)))
    return family.prefixes[Reading.parse(read if isinstance(read, str) else read[0]).stack]


def _boundaries(labels: Tensor) -> Fields:
    """Return two positions of a span and one of another, which has no label in every second sample; `labels` [B, 3]."""
    rows = len(labels)
    unasked = torch.arange(rows)[:, None] % 2 * torch.tensor([0, 0, 1])
    return {
        "span_left": torch.tensor([2, 2, 5]).repeat(rows, 1) * (1 - unasked),
        "span_right": torch.tensor([5, 5, 7]).repeat(rows, 1) * (1 - unasked),
        "span_offset": torch.tensor([0, 1, 0]).repeat(rows, 1),
        "span_labels": labels.masked_fill(unasked == 1, IGNORED),
    }

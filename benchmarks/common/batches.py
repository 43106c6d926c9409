"""Random batches of any family, for benchmarks and tests: the inputs of its stacks and the labels of its heads. Also
the options of a size that only some families have."""

# B samples, S positions of a sample, K target positions

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.models.head_costs import HEADS, HeadCosts, TokenClassHeadCosts
from megaptm.spec import Block, Family, HeadInput, change, with_attention_options

Fields = dict[str, Tensor]


def family_size_options(family: Family, *, embedding: int, band: int, memory: int = 0) -> dict[str, Any]:
    """Return the options of a small size that only some families have.

    - `embedding`: width of the token table
    - `band`: width of banded attention
    - `memory`: length of the recurrence cache; 0 to leave it out

    Published key-value heads are one or two. Cutoffs of adaptive softmax suit a vocabulary of about 100.
    """
    sizes, values = family.sizes.values(), {}
    if all(size.embedding is not None for size in sizes):
        values["embedding"] = embedding
    if any("banded" in block.kinds for block in family.stacks.values()):
        values["band"] = band
    if all(size.inputs.get("cutoffs") for size in sizes):
        values["inputs"] = {"cutoffs": (20, 45, 80), "division": 2}
    if memory and all(size.memory is not None for size in sizes):
        values["memory"] = memory
    if published := {size.kv_heads for size in sizes} - {None}:
        values["kv_heads"] = min(2, *published)
    return values


def sample_classes(family: Family) -> dict[str, int]:
    """Return the input fields with one class per sample, such as task ids, and their numbers of classes."""
    return {name: vars(record)["rows"] for record in family.inputs for name in record.sample_fields}


def small_patterns(
    family: Family, *, window: int | tuple[int, ...], block: int, chunk: int, hashed_chunk: int
) -> Family:
    """Return the family with windows, blocks and chunks that are small enough for short samples."""
    options: dict[str, Any] = {"block_size": block, "num_random_blocks": 1, "num_hashes": 2}
    one_window = window if isinstance(window, int) else window[0]
    stacks = {
        name: with_attention_options(
            pattern,
            options
            # Layers with a window that take turns with other layers have the same one.
            | {"window": one_window if "sliding-window" in pattern.kinds else window}
            | _chunk_options(pattern, chunk, hashed_chunk),
        )
        for name, pattern in family.stacks.items()
    }
    return change(family, stacks=stacks) if stacks != family.stacks else family


def _chunk_options(block: Block, chunk: int, hashed_chunk: int) -> dict[str, Any]:
    if not (hashed := [record for record in block.attentions if hasattr(record, "num_hashes")]):
        return {}
    lengths = tuple(hashed_chunk if hasattr(record, "num_hashes") else chunk for record in block.attentions)
    return {"chunk_length": lengths, "num_buckets": 4 if isinstance(hashed[0].num_buckets, int) else (2, 4)}


@dataclass(frozen=True)
class TokenSampler:
    """Sampler of random token ids, and of labels for classification heads."""

    generator: torch.Generator
    vocabulary: int
    min_id: int = 0
    """Minimum id."""

    def tokens(self, *shape: int) -> Tensor:
        return torch.randint(self.min_id, self.vocabulary, shape, generator=self.generator)

    def classes(self, num_classes: int, *shape: int) -> Tensor:
        return torch.randint(num_classes, shape, generator=self.generator)


def make_input_fields(family: Family, documents: Mapping[str, Tensor], sampler: TokenSampler) -> Fields:
    """Return the input fields of the stacks. `documents`: prefix -> document ids [B, S].

    Families with a per-sample attention order get a prefix of a third of the sequence with full attention, then causal
    attention; with queries beside the text, they get reversed causal attention. Families with global tokens get some.
    """
    fields: Fields = {}
    for prefix, document_ids in documents.items():
        fields |= {f"{prefix}tokens": sampler.tokens(*document_ids.shape), f"{prefix}document_ids": document_ids}
        if any(block.ordered for block in family.stacks.values()):
            samples, length = document_ids.shape
            order = (torch.arange(length) - length // 3).clamp(min=0)
            if family.has_queries:
                order = torch.arange(length).flip(0)
            fields[f"{prefix}order"] = order.expand(samples, -1).clone()
        records = [record for block in family.stacks.values() for record in block.attentions]
        if any("segments" in record.fields for record in records):
            fields[f"{prefix}segments"] = (
                (torch.arange(document_ids.shape[1]) * 3 // document_ids.shape[1]).expand_as(document_ids).clone()
            )
        if any(record.kind == "window" or not getattr(record, "edge_blocks", True) for record in records):
            global_tokens = torch.zeros_like(document_ids)
            global_tokens[:, 0] = global_tokens[1::2, document_ids.shape[1] // 2] = 1
            fields[f"{prefix}global_tokens"] = global_tokens
    return fields


def make_label_fields(
    family: Family,
    inputs: Fields,
    sampler: TokenSampler,
    *,
    positions: Callable[[], tuple[Tensor, Tensor]],
    row_labels: Callable[[type[HeadCosts]], Tensor],
) -> Fields:
    """Return the label fields of the family's heads. Padding in `inputs` has no labels.

    - `positions`: returns target positions int64 [B, K], and which of them have a label, bool [B, K]
    - `row_labels`: returns the labels [B] of a head that classifies samples
    """
    fields: Fields = {}
    for head in family.heads:
        fields |= _fields_of_head(
            HEADS[head], inputs[f"{_prefix(family, head)}document_ids"], sampler, positions, row_labels
        )
    if family.sampled:
        fields["uniforms"] = torch.rand(fields["labels"].shape, generator=sampler.generator)
    return fields


def _fields_of_head(
    head: type[HeadCosts],
    documents: Tensor,
    sampler: TokenSampler,
    positions: Callable[[], tuple[Tensor, Tensor]],
    row_labels: Callable[[type[HeadCosts]], Tensor],
) -> Fields:
    if head.name == "span-boundary":
        return _boundaries(sampler.tokens(len(documents), 3))
    if head.predicted_only:
        at, targets = positions()
        return {"masked_positions": at, head.label_field: sampler.tokens(*at.shape).masked_fill(~targets, IGNORED)}
    if head.labels_from_samples:
        labels = torch.zeros_like(documents)
    elif head.projects:
        labels = sampler.tokens(*documents.shape)
    elif issubclass(head, TokenClassHeadCosts):
        labels = sampler.classes(head.classes, *documents.shape)
    else:
        return {head.label_field: row_labels(head)}
    return {head.label_field: labels.masked_fill(documents == 0, IGNORED)}


def _prefix(family: Family, head: str) -> str:
    """Return the prefix of the fields of the stack that a head reads."""
    read = family.reads.get(head, next(reversed(family.stacks)))
    return family.prefixes[HeadInput.parse(read if isinstance(read, str) else read[0]).stack]


def _boundaries(labels: Tensor) -> Fields:
    """Return two positions of a span and one of another, which has no label in every second sample; `labels` [B, 3]."""
    samples = len(labels)
    unlabeled = torch.arange(samples)[:, None] % 2 * torch.tensor([0, 0, 1])
    return {
        "span_left": torch.tensor([2, 2, 5]).repeat(samples, 1) * (1 - unlabeled),
        "span_right": torch.tensor([5, 5, 7]).repeat(samples, 1) * (1 - unlabeled),
        "span_offset": torch.tensor([0, 1, 0]).repeat(samples, 1),
        "span_labels": labels.masked_fill(unlabeled == 1, IGNORED),
    }

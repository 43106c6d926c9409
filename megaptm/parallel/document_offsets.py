"""Offsets of the documents in a packed batch, for attention without a mask of all pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.layers.context import ALONE, ContextRanks
from megaptm.layers.kernels import describe_device
from megaptm.layers.varlen import CROSS_OFFSETS, OFFSETS, context_offsets, cross_offsets, document_offsets
from megaptm.parallel.groups import rank_device
from megaptm.parallel.hooks import EngineHook
from megaptm.spec import Family

FIELD = "document_ids"


class DocumentOffsetsHook(EngineHook):
    """Engine hook that adds document offsets to micro-batches with document ids, on devices whose attention kernels use
    them.

    The host computes the offsets. A GPU would need a synchronization to count the documents.
    """

    def __init__(self, family: Family, context: ContextRanks = ALONE) -> None:
        self._context = context
        self._causal = {family.prefixes[name]: block.causal for name, block in family.stacks.items()}
        self._prefixes = [*dict.fromkeys(family.prefixes.values())]
        self._crossed = {
            family.prefixes[name]: family.prefixes[block.cross]
            for name, block in family.stacks.items()
            if block.cross is not None
        }

    def prepare_batch(self, batch: MicroBatch) -> MicroBatch:
        here = describe_device(rank_device())
        if here.kind != "cuda":
            return batch
        added = self._find_context_offsets(batch) if self._context.size > 1 else self._find_offsets(batch)
        pinned = rank_device().type == "cuda"
        return batch | {
            name: offsets.pin_memory() if pinned else offsets for name, offsets in added.items() if offsets is not None
        }

    def _find_offsets(self, batch: MicroBatch) -> dict[str, Tensor | None]:
        added: dict[str, Tensor | None] = {}
        for prefix in self._prefixes:
            if prefix + FIELD in batch:
                added[prefix + OFFSETS] = document_offsets(batch[prefix + FIELD])
        for prefix, memory in self._crossed.items():
            if prefix + FIELD in batch and memory + FIELD in batch:
                added[prefix + CROSS_OFFSETS] = cross_offsets(batch[prefix + FIELD], batch[memory + FIELD])
        return added

    def _find_context_offsets(self, batch: MicroBatch) -> dict[str, Tensor | None]:
        """Return the document offsets of this context rank's queries. A sequence of a single document has offsets too,
        because kernels would otherwise need a mask of all pairs."""
        added: dict[str, Tensor | None] = {}
        documents = {prefix: self._get_documents(batch, prefix) for prefix in self._prefixes}
        chunks = {prefix: self._context.chunks(ids.shape[1]) for prefix, ids in documents.items()}
        for prefix, ids in documents.items():
            added[prefix + OFFSETS] = context_offsets(ids, ids, chunks[prefix], causal=self._causal[prefix])
        for prefix, memory in self._crossed.items():
            if (prefix + FIELD in batch) == (memory + FIELD in batch):
                offsets = context_offsets(documents[prefix], documents[memory], chunks[prefix], causal=False)
                added[prefix + CROSS_OFFSETS] = offsets
        return added

    @staticmethod
    def _get_documents(batch: MicroBatch, prefix: str) -> Tensor:
        return batch[prefix + FIELD] if prefix + FIELD in batch else torch.ones_like(batch[prefix + "tokens"])

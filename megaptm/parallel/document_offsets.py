"""Offsets of the documents in a packed batch, for attention without a mask of all pairs."""

from __future__ import annotations

from torch import Tensor

from megaptm.batch import MicroBatch
from megaptm.layers.kernels import describe_device
from megaptm.layers.varlen import CROSS_OFFSETS, OFFSETS, cross_offsets, document_offsets
from megaptm.parallel.groups import device
from megaptm.parallel.hooks import EngineHook
from megaptm.spec import Family

FIELD = "document_ids"


class DocumentOffsetsHook(EngineHook):
    """Engine hook that adds document offsets to micro-batches with document ids, on devices whose attention kernels use
    them.

    The host computes the offsets. A GPU would need a synchronization to count the documents.
    """

    def __init__(self, family: Family) -> None:
        self._prefixes = [*dict.fromkeys(family.prefixes.values())]
        self._crossed = {
            family.prefixes[name]: family.prefixes[block.cross]
            for name, block in family.stacks.items()
            if block.cross is not None
        }

    def prepare_batch(self, batch: MicroBatch) -> MicroBatch:
        here = describe_device(device())
        if here.kind != "cuda":
            return batch
        added: dict[str, Tensor | None] = {}
        for prefix in self._prefixes:
            if prefix + FIELD in batch:
                added[prefix + OFFSETS] = document_offsets(batch[prefix + FIELD])
        for prefix, memory in self._crossed.items():
            if prefix + FIELD in batch and memory + FIELD in batch:
                added[prefix + CROSS_OFFSETS] = cross_offsets(batch[prefix + FIELD], batch[memory + FIELD])
        pinned = device().type == "cuda"
        return batch | {
            name: offsets.pin_memory() if pinned else offsets for name, offsets in added.items() if offsets is not None
        }

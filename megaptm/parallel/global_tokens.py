"""Positions of global tokens in a batch, which all positions attend to (Longformer, BigBird)."""

from __future__ import annotations

from megaptm.batch import MicroBatch
from megaptm.layers.mask import GLOBAL_POSITIONS
from megaptm.layers.sparse import global_positions
from megaptm.parallel.groups import rank_device
from megaptm.parallel.hooks import EngineHook

FIELD = "global_tokens"


class GlobalTokensHook(EngineHook):
    """Engine hook that adds the positions of global tokens to micro-batches that mark such tokens.

    The host computes the positions. A GPU would need a synchronization in each layer to count them.
    """

    def prepare_batch(self, batch: MicroBatch) -> MicroBatch:
        added = {}
        for field in batch:
            if field.endswith(FIELD):
                positions = global_positions(batch[field])
                added[f"{field.removesuffix(FIELD)}{GLOBAL_POSITIONS}"] = (
                    positions.pin_memory() if rank_device().type == "cuda" else positions
                )
        return batch | added

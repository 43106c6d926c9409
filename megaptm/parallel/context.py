"""Context parallelism: each context rank computes a part of every sequence. All ranks read complete sequences."""

# B batch, S sequence, A target positions of a sample

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor

from megaptm.batch import IGNORED, MicroBatch
from megaptm.layers.context import ContextRanks, UsesContextRanks
from megaptm.models.embed import SEQUENCE_FIELDS
from megaptm.models.head_costs import HEADS
from megaptm.models.model import Model
from megaptm.parallel.groups import Ranks, rank_device
from megaptm.parallel.hooks import EngineHook
from megaptm.spec import ModelSpec

TARGETS = "masked_positions"


def context_ranks(ranks: Ranks) -> ContextRanks:
    """Return the context ranks of this process. The gradient of a gathered part is the sum over all ranks."""
    group = parallel_state.get_context_parallel_group()
    return ContextRanks(ranks.context, ranks.context_size, partial(gather_from_sequence_parallel_region, group=group))


def divide_sequences(model: Model, ranks: Ranks) -> None:
    """Let a model process this rank's part of each sequence."""
    if ranks.context_size > 1:
        context = context_ranks(ranks)
        for module in model.modules():
            if isinstance(module, UsesContextRanks):
                module.context = context


class ContextHook(EngineHook):
    """Reduce micro-batches to the part of this context rank: tokens, segments, positions and labels.

    Document ids and order, which attention compares with those of all keys, stay complete.
    """

    def __init__(self, spec: ModelSpec, context: ContextRanks) -> None:
        self._context, family = context, spec.family
        self._prefixes = [*dict.fromkeys(family.prefixes.values())]
        self._heads = {HEADS[name].label_field: HEADS[name] for name in family.heads}
        """Heads of the model by label field."""

    def prepare_batch(self, batch: MicroBatch) -> MicroBatch:
        own = dict(batch)
        for prefix in self._prefixes:
            tokens = batch[f"{prefix}tokens"]
            complete = {f"{prefix}positions": torch.arange(tokens.shape[1]).expand_as(tokens)} | batch
            for name in (prefix + field for field in SEQUENCE_FIELDS):
                if name in complete:
                    own[name] = self._context.own_part(complete[name], 1)
        target_labels = {}
        for name, head in self._heads.items():
            if name not in batch:
                continue
            if head.reads == "first":
                own[name] = batch[name] if self._context.rank == 0 else torch.full_like(batch[name], IGNORED)
            elif head.predicted_only and TARGETS in batch:
                target_labels[name] = batch[name]
            else:
                own[name] = self._context.own_part(batch[name], 1)
        own |= self._own_targets(batch, target_labels) if target_labels else {}
        pinned = rank_device().type == "cuda"
        changed = {name for name, values in own.items() if values is not batch.get(name)}
        return {name: values.pin_memory() if pinned and name in changed else values for name, values in own.items()}

    def _own_targets(self, batch: MicroBatch, labels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the target positions and labels in the sequence part of this context rank, padded to the largest
        number in a sample."""
        positions_BA = batch[TARGETS]
        length = batch["tokens"].shape[1]
        index_S = torch.full((length,), -1)
        index_S[self._context.positions(length, torch.device("cpu"))] = torch.arange(length // self._context.size)
        index_BA, number = index_S[positions_BA], positions_BA.shape[1]
        labels_BA = {
            name: F.pad(values, (0, number - values.shape[1]), value=IGNORED) for name, values in labels.items()
        }
        has_label_BA = torch.stack([values != IGNORED for values in labels_BA.values()]).any(0)
        is_own_BA = (index_BA >= 0) & has_label_BA
        max_targets = max(1, int(is_own_BA.sum(1).max()))
        order_BA = is_own_BA.int().argsort(dim=1, descending=True, stable=True)[:, :max_targets]
        is_own_BA = is_own_BA.gather(1, order_BA)
        targets = {TARGETS: (index_BA, 0)} | {name: (values, IGNORED) for name, values in labels_BA.items()}
        return {
            name: values.gather(1, order_BA).masked_fill(~is_own_BA, empty) for name, (values, empty) in targets.items()
        }

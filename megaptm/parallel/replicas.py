"""Comparison of the weights that several ranks hold.

A flipped bit, or a collective with a wrong result on one rank, leaves a replica with other weights: each rank then
trains another model, and no loss shows it. An integer sum of the bits of each weight is compared.
"""

# P parameters

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from megaptm.errors import FailureError
from megaptm.node import node_name
from megaptm.parallel.collectives import all_gather_object, copy_to_host
from megaptm.parallel.groups import Ranks, rank_device, replica_group

BITS = {2: torch.int16, 4: torch.int32}
"""Integer types with as many bits as a weight, by bytes."""
MAX_NAMED = 3
"""Maximum number of parameters that the error message names."""


class ReplicaError(FailureError):
    """Raised on all ranks if replicas of a weight differ."""


def check_replicas(weights: Mapping[str, Tensor], copied: Collection[str], ranks: Ranks) -> None:
    """Raise ReplicaError on all ranks unless all data ranks hold the same weights, and tensor ranks the same values of
    the `copied` ones.

    `weights`: name -> values, the same names on all data and tensor ranks of a stage. The cost is one pass over them.
    """
    empty = torch.empty(0, dtype=torch.int64, device=rank_device())
    digests_P = torch.cat([empty, *map(_digest, weights.values())])
    differs_P = torch.zeros_like(digests_P, dtype=torch.bool)
    if ranks.replicas > 1:
        differs_P |= _differs(digests_P, replica_group())
    if ranks.tensor_size > 1:
        is_copied_P = torch.tensor([name in copied for name in weights], dtype=torch.bool, device=rank_device())
        differs_P |= _differs(digests_P, parallel_state.get_tensor_model_parallel_group()) & is_copied_P
    number = differs_P.sum()
    dist.all_reduce(number)
    if copy_to_host(number):
        digests = dict(zip(weights, digests_P.tolist(), strict=True))
        raise ReplicaError(_describe(digests, copied, ranks))


@torch.no_grad()
def _digest(weight: Tensor) -> Tensor:
    """Return the sum of the bits of a weight modulo 2^64, [1]: the same on all devices, in any order of addition."""
    return weight.detach().reshape(-1).view(BITS[weight.element_size()]).sum(dtype=torch.int64).view(1)


def _differs(digests_P: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return whether the ranks of a group have different digests of each weight, [P]."""
    extremes = torch.stack([digests_P, ~digests_P])  # ~ reverses the order without overflow
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    return extremes[0] != ~extremes[1]


def _describe(digests: Mapping[str, int], copied: Collection[str], ranks: Ranks) -> str:
    """Return which ranks deviate from most replicas, and in which weights."""
    by_rank = all_gather_object((ranks.pipeline, ranks.tensor, digests, {*copied}, node_name()))
    replicas: dict[tuple[str, int, int | None], dict[int, int]] = defaultdict(dict)
    for rank, (stage, tensor, own_digests, own_copied, _) in enumerate(by_rank):
        for name, digest in own_digests.items():
            replicas[name, stage, None if name in own_copied else tensor][rank] = digest
    deviating: Counter[int] = Counter()
    differing: dict[str, None] = {}
    undecided: set[int] = set()
    for (name, *_), digest_by_rank in replicas.items():
        counts = Counter(digest_by_rank.values())
        if len(counts) == 1:
            continue
        differing[name] = None
        digest, votes = counts.most_common(1)[0]
        if 2 * votes > len(digest_by_rank):
            deviating.update(rank for rank, own_digest in digest_by_rank.items() if own_digest != digest)
        else:
            undecided.update(digest_by_rank)
    named = [f"rank {rank} on {by_rank[rank][4]}" for rank in sorted(deviating or undecided)]
    names = ", ".join([*differing][:MAX_NAMED])
    more = f" and {len(differing) - MAX_NAMED} more" if len(differing) > MAX_NAMED else ""
    holders = (
        f"{', '.join(named)} deviate{'s' if len(named) == 1 else ''}" if deviating else f"{' and '.join(named)} differ"
    )
    return f"replicas of the weights differ: {holders} in {names}{more}"

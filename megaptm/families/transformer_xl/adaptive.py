"""Adaptive input and softmax: embedding and output tables in clusters by frequency (arXiv:1809.10853).

Tensor ranks hold full copies and compute the same. On accelerators all rows are projected on every cluster, because
counting rows would synchronize with the host. On CPUs rows without a label in a cluster are dropped.
"""

# S sequence, B batch, D width, N rows, V vocabulary

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.families.transformer_xl.adaptive_costs import cluster_errors, cluster_projections, clusters
from megaptm.layers.split import Linear
from megaptm.losses.token import ReplicatedTokenLoss
from megaptm.models.head_costs import HeadCosts
from megaptm.spec import ModelSpec


class ClusterTable(nn.Module):
    """Embedding table of a cluster of Transformer-XL's vocabulary, replicated on ranks. Input and softmax read the
    table, and autograd adds their gradients."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))


class RowBias(nn.Module):
    """Bias with one value per row of a cluster's table (Transformer-XL)."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(rows))


class AdaptiveTokens(nn.Module):
    """Adaptive input of Transformer-XL: `tables` of clusters and their projections to the width of the stack
    (`maps`)."""

    def __init__(self, spec: ModelSpec, *, embeds: bool) -> None:
        """Build the tables of an adaptive vocabulary. `embeds`: whether this chunk embeds tokens, besides serving a
        tied output."""
        super().__init__()
        _check_adaptive(spec)
        self.clusters, self.width = clusters(spec), spec.width
        self.tables = nn.ModuleList(ClusterTable(cluster.rows, cluster.width) for cluster in self.clusters)
        linears = cluster_projections(spec)
        self.shared_map = len(linears) == 1
        # The softmax has its own projection instead of the first.
        skipped = 0 if embeds or self.shared_map else 1
        self.maps = nn.ModuleDict(
            {str(n): Linear.from_shape(cluster) for n, cluster in enumerate(linears) if n >= skipped}
        )
        for module in self.maps.values():
            cast(Linear, module).adds_products = False

    @property
    def weight(self) -> Tensor:
        """Return the weight of the first cluster's table of an adaptive vocabulary."""
        return self.cluster_table(0)

    def cluster_table(self, cluster: int) -> Tensor:
        weight = self.tables[cluster].weight
        assert isinstance(weight, Tensor)
        return weight

    def cluster_projection(self, cluster: int) -> Tensor | None:
        """Return the projection of a cluster of an adaptive vocabulary [D, width of the cluster], if there is one."""
        if not len(self.maps):
            return None
        weight = self.maps["0" if self.shared_map else str(cluster)].weight
        assert isinstance(weight, Tensor)
        return weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return Transformer-XL's adaptive embeddings [..., D] of ids [...]."""
        total: Tensor | None = None
        for number, cluster in enumerate(self.clusters):
            inside = (ids >= cluster.first) & (ids < cluster.first + cluster.rows)
            rows = F.embedding((ids - cluster.first).clamp(0, cluster.rows - 1), self.cluster_table(number))
            if (weight := self.cluster_projection(number)) is not None:
                rows = F.linear(rows, weight)
            rows = rows * inside[..., None]
            total = rows if total is None else total + rows
        assert total is not None
        return total


class AdaptiveHead(nn.Module):
    """Adaptive softmax of Transformer-XL: predicts a frequent token or a cluster, then a token of the cluster."""

    narrow: Linear | None

    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__()
        _check_adaptive(spec)
        self.clusters = clusters(spec)
        first, *tail = self.clusters
        self.narrow = Linear.from_shape(costs.linears["narrow"]) if "narrow" in costs.linears else None
        self.cluster = ClusterTable(len(tail), first.width)
        self.cluster_bias = RowBias(len(tail))
        self.word_bias = nn.ModuleList(RowBias(cluster.rows) for cluster in self.clusters)
        self.project = nn.ModuleList(
            ReplicatedTokenLoss(rows) for rows in (first.rows + len(tail), *(cluster.rows for cluster in tail))
        )

    def loss(self, x_SBD: Tensor, batch: dict[str, Tensor], tied: AdaptiveTokens) -> tuple[Tensor, Tensor]:
        labels_N, x_ND = batch["labels"].t().reshape(-1), x_SBD.flatten(0, 1)
        labeled = labels_N != IGNORED
        total = x_ND.new_zeros((), dtype=torch.float32)
        head_N = labels_N
        for number, cluster in enumerate(self.clusters[1:], 1):
            inside = (labels_N >= cluster.first) & labeled
            head_N = torch.where(inside, self.clusters[0].rows + number - 1, head_N)
            word_N = torch.where(inside & (labels_N < cluster.first + cluster.rows), labels_N - cluster.first, IGNORED)
            total = total + self.project[number](*self._cluster_inputs(number, x_ND, tied), word_N)
        total = total + self.project[0](*self._cluster_inputs(0, x_ND, tied), head_N)
        return total, labeled.sum().float()

    def logits(self, x_SBD: Tensor, tied: AdaptiveTokens) -> Tensor:
        """Return the log-probabilities of Transformer-XL's adaptive softmax, [B, S, V]."""
        x_BSD = x_SBD.transpose(0, 1)
        first = self.clusters[0].rows
        head = self._log_probabilities(0, x_BSD, tied)
        logits = [head[..., :first]]
        for number in range(1, len(self.clusters)):
            logits.append(head[..., first + number - 1 : first + number] + self._log_probabilities(number, x_BSD, tied))
        return torch.cat(logits, -1)

    def _log_probabilities(self, number: int, x: Tensor, tied: AdaptiveTokens) -> Tensor:
        hidden, weight, bias = self._cluster_inputs(number, x, tied)
        return F.linear(hidden, weight, bias).log_softmax(-1)

    def _cluster_inputs(self, number: int, x: Tensor, tied: AdaptiveTokens) -> tuple[Tensor, Tensor, Tensor]:
        """Return input, table and bias of a cluster in the adaptive softmax. Clusters are rows of the first table,
        after its tokens."""
        bias = self.word_bias[number].bias
        assert isinstance(bias, Tensor)
        if number == 0:
            hidden = x if self.narrow is None else self.narrow(x)
            weight = torch.cat([tied.cluster_table(0), self.cluster.weight])
            return hidden, weight, torch.cat([bias, self.cluster_bias.bias])
        to_stream, table = tied.cluster_projection(number), tied.cluster_table(number)
        # A view of the parameter: the loss would otherwise add its gradient to the engine's buffer, bypassing autograd,
        # which has another part of it.
        return x if to_stream is None else F.linear(x, to_stream.t()), table.view_as(table), bias


def _check_adaptive(spec: ModelSpec) -> None:
    """Raise `UserError` if the family has components that adaptive clusters do not support."""
    for mistake in cluster_errors(spec):
        raise UserError(f"{spec.name}: {mistake}")

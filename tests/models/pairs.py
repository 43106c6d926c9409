"""A head registered by a test: the two texts of each sample match each other within the batch (CLIP's loss)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.layers.costs import LinearShape
from megaptm.layers.split import Linear
from megaptm.models.contrast import ContrastHead
from megaptm.models.contrast_costs import ContrastHeadCosts
from megaptm.models.head_costs import HEADS, HeadCosts
from megaptm.spec import ModelSpec

WIDTH = 8


class PairsCosts(ContrastHeadCosts):
    """Reads the first position of each of two stacks."""

    name = "pairs"
    label_field = "pairs"
    features = 2 * WIDTH + 1
    module = "tests.models.pairs:PairsHead"

    @property
    def linears(self) -> Mapping[str, LinearShape]:
        return {
            reading.stack: LinearShape(self.spec.size_of(reading.stack).width, WIDTH, False)
            for reading in self.head_inputs
        } | {"temperature": LinearShape(1, 1, True)}

    def multiply_adds(self, positions: int) -> int:
        return super().multiply_adds(1)


HEADS[PairsCosts.name] = PairsCosts


class PairsHead(ContrastHead):
    def __init__(self, spec: ModelSpec, costs: HeadCosts) -> None:
        super().__init__(spec, costs)
        self.sides = nn.ModuleDict(
            {reading.stack: Linear.from_shape(costs.linears[reading.stack]) for reading in costs.head_inputs}
        )
        self.temperature = Linear.from_shape(costs.linears["temperature"])

    def features(self, *streams_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        sides = [
            F.normalize(side(x[0]).float(), dim=-1) for side, x in zip(self.sides.values(), streams_SBD, strict=True)
        ]
        scale = self.temperature(torch.ones_like(streams_SBD[0][0, :, :1])).float().exp()
        return torch.cat([*sides, scale], dim=-1)

    def compare(self, features_NF: Tensor, labels_N: Tensor, own: slice) -> Tensor:
        left_NW, right_NW, scale = features_NF.split([WIDTH, WIDTH, 1], dim=-1)
        labeled = labels_N != IGNORED
        expected = torch.arange(len(left_NW), device=left_NW.device)[own]
        losses = []
        for queries, keys in ((left_NW[own], right_NW), (right_NW[own], left_NW)):
            scores = (scale.mean() * queries @ keys.t()).masked_fill(~labeled[None, :], float("-inf"))
            scores = scores.masked_fill(~labeled[own, None], 0.0)
            losses.append(F.cross_entropy(scores, expected, reduction="none").masked_fill(~labeled[own], 0.0))
        return (losses[0] + losses[1]) / 2

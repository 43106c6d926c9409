"""Character-based word embeddings (ELMo)."""

# N words, C characters of a word, K width of a filter, W width of a character embedding, F filters, D width

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.families.elmo.character_costs import convolution_shapes, word_shapes
from megaptm.families.elmo.spec import CharacterInput, character_sizes
from megaptm.families.elmo.spelling import NUM_CHARACTERS
from megaptm.layers.split import Embedding, Linear
from megaptm.spec import ModelSpec


class Highway(nn.Module):
    """Highway layer of ELMo's word embeddings (arXiv:1505.00387). `carry` is the gate of the new value, as in the
    released code."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.carry, self.transform = (Linear(size, size, bias=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.carry(x))
        return gate * F.relu(self.transform(x)) + (1 - gate) * x


class CharacterWords(nn.Module):
    """ELMo's character-based word embeddings: character embeddings, convolutions with max-pooling, highway layers and a
    projection to the width of the stack."""

    def __init__(self, spec: ModelSpec, record: CharacterInput) -> None:
        super().__init__()
        size, sizes = spec.size, character_sizes(spec.size)
        if not sizes.filters:
            raise UserError(
                f"{spec.name} reads words by their characters, and its size has no filters: give model.filters."
            )
        self.widths = [characters for characters, _ in sizes.filters]
        self.characters = Embedding(NUM_CHARACTERS, sizes.width)
        self.filters: Iterable[Linear] = nn.ModuleList(map(Linear.from_shape, convolution_shapes(size)))  # type: ignore[assignment]
        *_, out = word_shapes(size)
        self.highway = nn.ModuleList(Highway(out.inputs) for _ in range(sizes.highway))
        self.out = Linear.from_shape(out)

    def forward(self, characters_BSC: Tensor, ids_SB: Tensor) -> Tensor:
        """Return ELMo's word embeddings [S, B, D] of character ids [B, S, C]."""
        ids_SBC = characters_BSC.transpose(0, 1)
        x_NWC = self.characters(ids_SBC.long().flatten(0, -2)).transpose(1, 2)
        outputs = [
            F.conv1d(x_NWC, filters.weight.unflatten(1, (width, -1)).transpose(1, 2), filters.bias).amax(-1)
            for width, filters in zip(self.widths, self.filters, strict=True)
        ]
        x = F.relu(torch.cat(outputs, -1))
        for layer in self.highway:
            x = layer(x)
        return self.out(x).unflatten(0, ids_SBC.shape[:-1])

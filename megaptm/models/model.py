"""The model: embedding, stacks, heads; whole, or the part of it that one stage of a pipeline holds."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from megaptm.bricks import HEADS
from megaptm.errors import UserError
from megaptm.layers.layer import Stack
from megaptm.layers.mask import cross_mask, self_mask
from megaptm.models.embed import Embed
from megaptm.models.heads import Head, Loss, build_heads
from megaptm.spec import ModelSpec


@dataclass(frozen=True)
class Part:
    """A contiguous run of the chain of layers: the encoder's, then the decoder's."""

    layers: dict[str, range]
    """Which layers of each stack, by their number in that stack."""
    first: bool
    """Holds the embedding."""
    last: bool
    """Holds the heads, and the token table they are tied to."""


def parts(spec: ModelSpec, num_parts: int) -> list[Part]:
    """The chain of layers cut into equal parts."""
    stacks, layers = list(spec.family.stacks), spec.size.layers
    total = layers * len(stacks)
    if num_parts < 1 or total % num_parts:
        raise UserError(
            f"{spec.name} has {total} layers ({' + '.join(f'{layers} {name}' for name in stacks)}), "
            f"which {num_parts} pipeline parts do not divide; choose a number of parts that divides {total}."
        )
    share = total // num_parts

    def cut(start: int) -> dict[str, range]:
        offsets = {name: index * layers for index, name in enumerate(stacks)}
        return {
            name: range(min(max(start - offset, 0), layers), min(max(start + share - offset, 0), layers))
            for name, offset in offsets.items()
        }

    return [Part(cut(n * share), first=n == 0, last=n == num_parts - 1) for n in range(num_parts)]


def stream_lengths(batch: Mapping[str, Tensor], prefixes: Mapping[str, str]) -> dict[str, int]:
    """Stack -> places of a row of it."""
    return {name: batch[f"{prefix}tokens"].shape[1] for name, prefix in prefixes.items()}


def same(x: Tensor) -> Tensor:
    """x: what `Model.enter` and `Model.leave` are on one device."""
    return x


class Model(nn.Module):
    """Built from a spec and nothing else.

    `embed.token.weight`, `encoder.0.attention.qkv.weight`, `decoder.final.weight`, `head.mlm.transform.weight`: a
    parameter has the same name whatever part it lives in. Only `embed.token.weight` may live in two.
    """

    parts = staticmethod(parts)
    embed: Embed | None
    head: nn.ModuleDict | None

    def __init__(self, spec: ModelSpec, part: Part | None = None) -> None:
        super().__init__()
        self.spec, self.part = spec, part or parts(spec, 1)[0]
        family = spec.family
        self.enter: Callable[[Tensor], Tensor] = same
        """Applied to each stream once it is embedded (splits the sequence over ranks)."""
        self.leave: Callable[[Tensor], Tensor] = same
        """Applied to the stream before the heads (gathers it)."""

        self.embed = self.head = None
        if self.part.first:
            self.embed = Embed(spec)
        elif self.part.last and family.tied:
            self.embed = Embed(spec, token_only=True)
        for name, block in family.stacks.items():
            if layers := self.part.layers[name]:
                self.add_module(name, Stack(block, spec.size, layers, dropout=spec.dropout))
        if self.part.last:
            self.head = build_heads(spec)

    def forward(
        self, batch: dict[str, Tensor], x: Tensor | None = None
    ) -> Tensor | dict[str, Loss] | dict[str, Tensor]:
        """One stage's work.

        `batch` has ids [B, S] and masks of every stream, on every part; `x` [S, B, D] is what the part before gave. All
        parts but the last give such a stream, encoder and decoder concatenated along the sequence. The last gives
        {loss name: (summed loss, number of labels)}, or logits if nothing in the batch is labeled.
        """
        x = self._run(batch, x)
        if self.head is None:
            return x
        x = self.leave(x)
        asked = {name: head for name, head in self._heads().items() if HEADS[name].answers in batch}
        return {name: head.loss(x, batch, self._table) for name, head in asked.items()} or self._logits(x)

    def logits(self, batch: dict[str, Tensor], x: Tensor | None = None) -> dict[str, Tensor]:
        """What each head says: `lm` and `mlm` [B, S, vocabulary] at every position, `next-sentence` [B, 2]."""
        return self._logits(self.leave(self._run(batch, x)))

    def _logits(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head.logits(x, self._table) for name, head in self._heads().items()}

    def _heads(self) -> dict[str, Head]:
        assert self.head is not None, "only the last part has heads"
        return cast(dict[str, Head], dict(self.head.items()))

    @property
    def _table(self) -> Tensor | None:
        return self.embed.token.weight if self.embed is not None and self.spec.family.tied else None

    def _run(self, batch: dict[str, Tensor], x: Tensor | None) -> Tensor:
        """From the embedding, or from the stream of the part before, through the layers held here."""
        prefixes = self.spec.family.prefixes
        streams = self._embed(batch, prefixes) if x is None else self._divide(batch, prefixes, x)
        for name, prefix in prefixes.items():
            if (stack := self.stack(name)) is None:
                continue
            mask = self_mask(batch, prefix, stack.block.visibility)
            memory, memory_mask = None, None
            if (source := stack.block.cross) is not None:
                memory, memory_mask = streams[source], cross_mask(batch, prefix, prefixes[source])
            streams[name] = stack(streams[name], mask, memory, memory_mask)
        if self.part.last:
            return streams[name]
        return torch.cat(list(streams.values())) if len(streams) > 1 else streams.popitem()[1]

    def stack(self, name: str) -> Stack | None:
        """The layers of a stack that this part holds, if any."""
        return cast(Stack | None, self._modules.get(name))

    def _embed(self, batch: dict[str, Tensor], prefixes: dict[str, str]) -> dict[str, Tensor]:
        assert self.embed is not None
        assert self.part.first, "only the first part embeds; the others are handed a stream"
        return {name: self.embed(batch, prefix, self.enter) for name, prefix in prefixes.items()}

    def _divide(self, batch: dict[str, Tensor], prefixes: dict[str, str], x: Tensor) -> dict[str, Tensor]:
        """The concatenated stream, cut where one ends and the next begins; ranks may hold a slice of each."""
        lengths = [*stream_lengths(batch, prefixes).values()]
        return dict(zip(prefixes, x.split([n * len(x) // sum(lengths) for n in lengths]), strict=True))

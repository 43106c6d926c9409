"""The model: embedding, stacks, heads; whole, or the chunk of it that one stage of a pipeline holds."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.batch import IGNORED
from megaptm.bricks import HEADS, ModelChunk, chunks, memory_width, past_width
from megaptm.errors import UserError
from megaptm.layers.layer import Stack, same
from megaptm.layers.lsh import EVALUATION, HashedAttend
from megaptm.layers.mask import cross_mask, self_mask
from megaptm.layers.past import Past
from megaptm.layers.recurrent import RecurrentStack
from megaptm.models.contrast import ContrastHead
from megaptm.models.distill import DistillationLosses, States
from megaptm.models.draw import REPLACED, DrawingHead, draw_tokens
from megaptm.models.embed import Embed
from megaptm.models.heads import BidirectionalHead, Head, build_heads
from megaptm.models.loss import Loss
from megaptm.spec import EMBEDDED, Block, Distillation, Family, ModelSpec, Reading

NONE_ENDED: Mapping[str, Tensor] = MappingProxyType({})
NOTHING_PAST: Mapping[str, Past] = MappingProxyType({})


def even_chunks(spec: ModelSpec, number: int) -> list[ModelChunk]:
    """The chain of layers cut into equal chunks."""
    total, stacks = spec.layers, spec.family.stacks
    if number < 1 or total % number:
        raise UserError(
            f"{spec.name} has {total} layers ({' + '.join(f'{spec.size_of(name).layers} {name}' for name in stacks)}), "
            f"which {number} pipeline chunks do not divide; choose a number of chunks that divides {total}."
        )
    return chunks(spec, number)


def stream_lengths(batch: Mapping[str, Tensor], family: Family) -> dict[str, int]:
    """Stack -> places of a row of it between chunks, of all its streams."""
    lengths = {}
    for name, prefix in family.prefixes.items():
        asked = batch.get(f"{prefix}masked_positions")
        places = family.places(name, batch[f"{prefix}tokens"].shape[1], 0 if asked is None else asked.shape[1])
        lengths[name] = family.stacks[name].streams * places
    return lengths


def _stack(spec: ModelSpec, name: str, block: Block, layers: range) -> Stack | RecurrentStack:
    size = spec.size_of(name)
    memory = memory_width(spec, name)
    if block.is_recurrent:
        return RecurrentStack(block, size, layers, dropout=spec.dropout, memory=memory)
    return Stack(block, size, layers, dropout=spec.dropout, memory=memory, context=spec.context_of(name))


def _no_engine(stream: Tensor, losses: dict[str, Loss]) -> Tensor:
    raise RuntimeError(
        f"{[*losses]}: losses before the last chunk need somebody who adds them (parallel.pipeline.InnerLosses)"
    )


class Model(nn.Module):
    """Built from a spec and nothing else.

    `embed.token.weight`, `encoder.0.attention.qkv.weight`, `decoder.final.weight`, `head.mlm.transform.weight`: a
    parameter has the same name whatever chunk it lives in. Some live in several: the token table where heads are tied
    to it, a stack's table of biases, and what layers share.
    """

    embed: Embed | None
    head: nn.ModuleDict | None

    def __init__(
        self, spec: ModelSpec, chunk: ModelChunk | None = None, distillation: Distillation | None = None
    ) -> None:
        """`distillation`: what it is asked of a teacher besides."""
        super().__init__()
        self.spec, self.chunk = spec, chunk or chunks(spec, 1)[0]
        family = spec.family
        self.scatter_sequence: Callable[[Tensor], Tensor] = same
        """Applied to each stream once it is embedded (splits the sequence over ranks)."""
        self.gather_sequence: Callable[[Tensor], Tensor] = same
        """Applied to the stream before the heads (gathers it)."""

        self.add_losses: Callable[[Tensor, dict[str, Loss]], Tensor] = _no_engine
        """Gives the stream on, with losses of heads that are not on the last chunk in its backward pass."""

        if len(family.stacks) > 1 and any(block.reversible for block in family.stacks.values()):
            raise UserError(f"{spec.name}: a reversible stack stands alone; set residual=sum, or leave the others out.")
        self.embed = self.head = None
        regresses = any(HEADS[name].regresses for name in self.chunk.heads)
        projects = family.tied and any(HEADS[name].projects for name in self.chunk.heads)
        if self.chunk.begins or projects or regresses:
            self.embed = Embed(spec, self.chunk.begins, regresses=regresses)
        for name, block in family.stacks.items():
            if layers := self.chunk.layers[name]:
                self.add_module(name, _stack(spec, name, block, layers))
        for reading in chain(*map(spec.readings, self.chunk.heads)):
            if (read := self.stack(reading.stack)) is not None and reading.layer is not None:
                read.read |= {reading.layer}
        if self.chunk.last or self.chunk.heads:
            self.head = build_heads(spec, self.chunk.heads)
        self.distill = None if distillation is None else DistillationLosses(spec, distillation)
        if distillation is not None:
            self.keep_layers(distillation.read_of_student(spec))

    def keep_layers(self, layers: Mapping[str, Iterable[int]]) -> None:
        """Let `states` have what these layers of a stack give."""
        for name, numbers in layers.items():
            if (stack := self.stack(name)) is not None:
                stack.read |= {*numbers}

    def forward(
        self,
        batch: dict[str, Tensor],
        x: Tensor | None = None,
        *,
        features: bool = False,
        pasts: Mapping[str, Past] = NOTHING_PAST,
        teacher: Model | None = None,
    ) -> Tensor | dict[str, Loss] | dict[str, Tensor]:
        """One stage's work.

        `batch` has ids [B, S] and masks of every stream, on every chunk; `x` [S, B, D] is what the chunk before gave.
        All chunks but the last give such a stream, encoder and decoder concatenated along the sequence. The last gives
        {loss name: (summed loss, number of labels)}, or logits if nothing in the batch is labeled; with `features`
        {loss name: features [B, F]} of the losses that compare rows. `pasts`: stack -> what its layers remember of rows
        before, which is told what they read now. `teacher`: a whole model, whose losses there are then, too; they are
        without it where the batch has what it says.
        """
        streams, inner = self._run(batch, x, pasts=pasts)
        batch = self._answered(batch, streams)
        asked = {name: head for name, head in self._heads().items() if HEADS[name].answers in batch}
        if not self.chunk.last:
            filled = [self._filled(stream) for stream in streams.values()]
            stream = torch.cat(filled) if len(filled) > 1 else filled[0]
            if not asked or features:
                return stream
            read = self._read(streams, inner, asked)
            return self.add_losses(stream, self._losses(asked, read, batch))
        if not asked:
            return self._logits(streams, inner, batch)
        if features:
            asked = {name: head for name, head in asked.items() if HEADS[name].contrasts}
        read = self._read(streams, inner, asked)
        if features:
            return {name: cast(ContrastHead, head).features(*read[name], batch=batch) for name, head in asked.items()}
        losses = self._losses(asked, read, batch)
        if self.distill is not None and (teacher is not None or self.distill.wanted.cached):
            losses |= self.distill.losses(self, States(streams, inner), teacher, batch)
        return losses

    def states(self, batch: dict[str, Tensor], *, pasts: Mapping[str, Past] = NOTHING_PAST) -> States:
        """What stacks give, and the layers that are kept; the model is whole. `pasts`: as `forward`."""
        return States(*self._run(batch, None, pasts=pasts))

    def attention_scores(self, stack: str, layer: int, x_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """[B, H, S, S]: what a layer's softmax is taken of, computed again of what the layer reads; of pairs that are
        hidden, or score -100 and less, zero (the released code of TinyBERT)."""
        layers, prefix = self.stack(stack), self.spec.family.prefixes[stack]
        assert isinstance(layers, Stack)
        mask = self_mask(batch, prefix, layers.block.visibility, block=layers.block)
        return layers.attention_scores(layer, x_SBD, mask, batch.get(f"{prefix}positions"))

    def hash_by(self, key: str | None) -> None:
        """What rotations of hashes are drawn by from here on, besides layer and head; None: as for evaluation."""
        for module in self.modules():
            if isinstance(module, HashedAttend):
                module.key = EVALUATION if key is None else key

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """[B, S, D]: what the last layer of the first stack says of its text, or of the one that reads what is drawn;
        the model is whole."""
        assert self.embed is not None
        name = next(iter(self.spec.family.drawn), next(iter(self.spec.family.stacks)))
        stack = self.stack(name)
        assert stack is not None
        batch = self._alone(batch)
        mask = self_mask(batch, "", stack.block.visibility, block=stack.block)
        x = self.embed(batch, name, self.scatter_sequence)
        if isinstance(stack, RecurrentStack):
            x = stack(x, mask)
        else:
            x = stack(x, mask, positions=batch.get("positions"), decode=False)
        return self.gather_sequence(x).transpose(0, 1)

    def begin_step(self, *, seed: int, step: int) -> None:
        """What heads draw for a step of training, the same for all its rows."""
        for head in self._heads().values():
            if isinstance(head, BidirectionalHead):
                head.draw(seed=seed, step=step)

    def answered(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch with the answers that drawing decides (ELECTRA: which tokens were replaced); the model is whole."""
        return self._answered(batch, self._run(batch, None)[0])

    def logits(
        self,
        batch: dict[str, Tensor],
        x: Tensor | None = None,
        *,
        ended: Mapping[str, Tensor] = NONE_ENDED,
        pasts: Mapping[str, Past] = NOTHING_PAST,
    ) -> dict[str, Tensor]:
        """What each head says: `lm` and `mlm` [B, S, vocabulary] at every position, `next-sentence` [B, 2],
        `image-text` the features of either side, and the temperature [B, 2 E + 1]. `ended`:
        stack -> what it gives [S, B, D], where that is known. `pasts`: as `forward`. Of a text with queries beside it,
        what the text says; `asked_logits` has what they say."""
        batch = self._alone(batch)
        return self._logits(*self._run(batch, x, ended, pasts), batch)

    def asked_logits(self, batch: dict[str, Tensor], *, pasts: Mapping[str, Past] = NOTHING_PAST) -> dict[str, Tensor]:
        """What each head says of the text, and behind it of the queries beside it, [B, S + A, vocabulary]."""
        return self._logits(*self._run(batch, None, pasts=pasts), batch)

    def _alone(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Without queries beside the text."""
        if not any(block.query_stream for block in self.spec.family.stacks.values()):
            return batch
        return {field: value for field, value in batch.items() if field != "masked_positions"}

    def empty_pasts(self, rows: int, *, places: int | None = None, farthest: int | None = None) -> dict[str, Past]:
        """Of the stacks that remember: room for `places` (absent: as many as the size says) and nothing in it yet."""
        found, like = {}, next(self.parameters())
        for name, layers in self.chunk.layers.items():
            size = self.spec.size_of(name)
            length = size.remembered if places is None else places
            block = self.spec.family.stacks[name]
            if layers and length and (block.relative or block.is_recurrent):
                shape = (1 if block.is_recurrent else length, rows, past_width(block, size))
                found[name] = Past.empty(layers, shape, like=like.detach(), farthest=farthest)
        return found

    def _logits(
        self, streams: dict[str, Tensor], inner: dict[Reading, Tensor], batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        read, said = self._read(streams, inner, self._heads()), {}
        for name, head in self._heads().items():
            if isinstance(head, ContrastHead):
                said[name] = head.features(*read[name], batch=batch)
            else:
                said[name] = head.logits(*read[name], tied=self._table_of(name))
        return said

    def _losses(
        self, heads: dict[str, Head], read: dict[str, tuple[Tensor, ...]], batch: dict[str, Tensor]
    ) -> dict[str, Loss]:
        return {name: head.loss(*read[name], batch=batch, tied=self._table_of(name)) for name, head in heads.items()}

    def _read(
        self, streams: dict[str, Tensor], inner: dict[Reading, Tensor], heads: Iterable[str]
    ) -> dict[str, tuple[Tensor, ...]]:
        """Head -> the streams that it reads, each gathered once."""
        readings = {name: self.spec.readings(name) for name in heads}
        gathered = {
            one: self.gather_sequence(inner[one] if one in inner else streams[one.stack])
            for one in dict.fromkeys(chain(*readings.values()))
        }
        return {name: tuple(gathered[one] for one in theirs) for name, theirs in readings.items()}

    def _heads(self) -> dict[str, Head]:
        return {} if self.head is None else cast(dict[str, Head], dict(self.head.items()))

    def _table_of(self, head: str) -> Any:
        """What a head projects on."""
        if not HEADS[head].regresses:
            return self.table
        assert self.embed is not None
        assert self.embed.region is not None
        return self.embed.region.project.weight

    @property
    def table(self) -> Any:
        """What heads project on: the token table, or the clusters of one."""
        if self.embed is not None and self.spec.size.cutoffs:
            return self.embed.token
        return self.embed.token.weight if self.embed is not None and self.spec.family.tied else None

    def _run(
        self,
        batch: dict[str, Tensor],
        x: Tensor | None,
        ended: Mapping[str, Tensor] = NONE_ENDED,
        pasts: Mapping[str, Past] = NOTHING_PAST,
    ) -> tuple[dict[str, Tensor], dict[Reading, Tensor]]:
        """From the embedding, or from the stream of the chunk before, through the layers held here but those of stacks
        that have ended; and what heads read of single layers on the way."""
        prefixes = self.spec.family.prefixes
        inner: dict[Reading, Tensor] = {}
        streams = self._embed(batch, ended) if x is None else self._divide(batch, x)
        for name, prefix in prefixes.items():
            if name in self.spec.family.drawn and name in self.chunk.begins:
                inner |= self._draw(name, batch, streams)
            if (stack := self.stack(name)) is None or name in ended:
                continue
            if (past := pasts.get(name)) is not None and "begins" in batch:
                past.begin(batch["begins"])
            mask = self_mask(batch, prefix, stack.block.visibility, block=stack.block, past=past)
            memory, memory_mask = None, None
            if (source := stack.block.cross) is not None:
                memory, memory_mask = streams[source], cross_mask(batch, prefix, prefixes[source])
            outputs: dict[int, Tensor] = {EMBEDDED: streams[name]} if EMBEDDED in stack.read else {}
            positions = batch.get(f"{prefix}positions")
            if isinstance(stack, RecurrentStack):
                streams[name] = stack(streams[name], mask, memory, memory_mask, outputs=outputs)
            else:
                streams[name] = stack(streams[name], mask, memory, memory_mask, positions, outputs)
            inner |= {Reading(name, layer): output for layer, output in outputs.items()}
        return streams, inner

    def stack(self, name: str) -> Stack | RecurrentStack | None:
        """The layers of a stack that this chunk holds, if any."""
        return cast(Stack | RecurrentStack | None, self._modules.get(name))

    def _embed(self, batch: dict[str, Tensor], ended: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self.embed is not None
        assert self.chunk.first, "only the first chunk embeds; the others are handed a stream"
        streams: dict[str, Tensor] = {}
        for name in self.spec.family.stacks:
            if name in ended:
                streams[name] = ended[name]
            elif name in self.spec.family.drawn:  # what it reads is not known yet
                like = streams[self.spec.family.source(name)]
                streams[name] = like.new_zeros(*like.shape[:2], self.spec.size_of(name).width)
            else:
                streams[name] = self.embed(batch, name, self.scatter_sequence)
        return streams

    def _draw(self, name: str, batch: dict[str, Tensor], streams: dict[str, Tensor]) -> dict[Reading, Tensor]:
        """Begin a stack that reads what a head draws. The stream of the stack that this head reads ends here, and is
        given back; in its place travel marks of the places that changed."""
        assert self.embed is not None
        family, head = self.spec.family, cast(DrawingHead, self._heads()[self.spec.family.drawn[name]])
        source, field = family.source(name), f"{family.prefixes[name]}tokens"
        ended = streams[source]
        with torch.no_grad():
            tokens, changed_BS = draw_tokens(head, self.gather_sequence(ended), batch, batch[field], self.table)
            marks_SB1 = self.scatter_sequence(changed_BS.t()[:, :, None].to(ended.dtype))
        streams[name] = self.embed({**batch, field: tokens}, name, self.scatter_sequence)
        streams[source] = marks_SB1.expand_as(ended)
        return {Reading(source, None): ended}

    def _answered(self, batch: dict[str, Tensor], streams: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self.chunk.last or REPLACED not in batch:
            return batch
        for name in self.spec.family.drawn:
            with torch.no_grad():
                changed_BS = self.gather_sequence(streams[self.spec.family.source(name)])[:, :, 0].t() > 0.5
            batch = {**batch, REPLACED: torch.where(batch[REPLACED] == IGNORED, IGNORED, changed_BS.long())}
        return batch

    def _divide(self, batch: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        """The concatenated stream, cut where one ends and the next begins; ranks may hold a slice of each."""
        found = stream_lengths(batch, self.spec.family)
        lengths = [*found.values()]
        streams = zip(found, x.split([n * len(x) // sum(lengths) for n in lengths]), strict=True)
        return {name: stream[..., : self.spec.size_of(name).width] for name, stream in streams}

    def _filled(self, stream_SBD: Tensor) -> Tensor:
        """As wide as the widest stack's: zeros behind."""
        missing = self.spec.width - stream_SBD.shape[-1]
        return F.pad(stream_SBD, (0, missing)) if missing else stream_SBD

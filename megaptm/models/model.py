"""Model: embedding, stacks and heads; complete, or the chunk of a pipeline stage."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.attention import AttentionCore
from megaptm.layers.context import UsesContextRanks
from megaptm.layers.layer_costs import memory_width
from megaptm.layers.mask import cross_mask, self_mask
from megaptm.layers.recurrence_cache import StackRecurrenceCache
from megaptm.layers.split import Linear, identity
from megaptm.layers.stack import BaseStack, Stack, StackInputs, stack_class
from megaptm.models.chunk import ModelChunk, model_chunks
from megaptm.models.contrast import ContrastHead
from megaptm.models.embed import Embed
from megaptm.models.head_costs import HEADS
from megaptm.models.heads import Head, build_heads
from megaptm.models.loss import Loss
from megaptm.models.output import ModelOutput, States
from megaptm.models.sample import InputSampler, SamplingHead
from megaptm.plugins import load_class
from megaptm.spec import EMBEDDED, Block, Family, HeadInput, ModelSpec

NONE_ENDED: Mapping[str, Tensor] = MappingProxyType({})
NO_CACHES: Mapping[str, StackRecurrenceCache] = MappingProxyType({})


def even_chunks(spec: ModelSpec, number: int) -> list[ModelChunk]:
    """Divide the layers of all stacks of a model into equal chunks for pipeline stages. Raises `UserError` if their
    number is not divisible."""
    total, stacks = spec.layers, spec.family.stacks
    if number < 1 or total % number:
        raise UserError(
            f"{spec.name} has {total} layers ({' + '.join(f'{spec.size_of(name).layers} {name}' for name in stacks)}), "
            f"which {number} pipeline chunks do not divide; choose a number of chunks that divides {total}."
        )
    return model_chunks(spec, number)


def stream_lengths(batch: Mapping[str, Tensor], family: Family) -> dict[str, int]:
    """Return the sequence length of each stack's output in the tensor between pipeline chunks, all of its residual
    streams included."""
    lengths = {}
    for name, prefix in family.prefixes.items():
        targets = batch.get(f"{prefix}masked_positions")
        positions = family.sequence_length(
            name, batch[f"{prefix}tokens"].shape[1], 0 if targets is None else targets.shape[1]
        )
        lengths[name] = family.stacks[name].residual.streams * positions
    return lengths


def _attention_fields(batch: Mapping[str, Tensor], prefix: str, block: Block) -> dict[str, Tensor]:
    """Return the batch fields that a block's kinds of attention request."""
    names = {name for record in block.attentions for name in record.fields}
    return {name: batch[prefix + name] for name in names if prefix + name in batch}


def _build_stack(spec: ModelSpec, name: str, block: Block, layers: range) -> BaseStack:
    size, memory = spec.size_of(name), memory_width(spec, name)
    return stack_class(block)(block, size, layers, dropout=spec.dropout, memory=memory, context=spec.context_of(name))


def _no_engine(stream: Tensor, losses: dict[str, Loss]) -> Tensor:
    raise RuntimeError(f"{[*losses]}: losses before the last chunk must be added by parallel.pipeline.InnerLosses")


class Model(UsesContextRanks, nn.Module):
    """Model built from a spec.

    Parameter names do not depend on the chunk: `embed.token.weight`, `encoder.0.attention.qkv.weight`,
    `decoder.final.weight`, `head.mlm.transform.weight`. Some parameters are in several chunks: a tied token table, the
    bias table of a stack, shared layers.
    """

    embed: Embed | None
    head: nn.ModuleDict | None

    def __init__(self, spec: ModelSpec, chunk: ModelChunk | None = None) -> None:
        super().__init__()
        self.spec, self.chunk = spec, chunk or model_chunks(spec, 1)[0]
        family = spec.family
        self.scatter_sequence: Callable[[Tensor], Tensor] = identity
        """Hook applied to hidden states after embedding; splits the sequence over tensor ranks."""
        self.gather_sequence: Callable[[Tensor], Tensor] = identity
        """Hook applied to hidden states before the heads; gathers the sequence."""

        self.add_losses: Callable[[Tensor, dict[str, Loss]], Tensor] = _no_engine
        """Hook that adds losses of heads before the last pipeline chunk to the backward pass of the hidden states."""

        if len(family.stacks) > 1 and (several := [b for b in family.stacks.values() if b.residual.streams > 1]):
            raise UserError(
                f"{spec.name}: a {several[0].residual.kind} stack must be the only stack; use ResidualSpec(), or "
                "remove the others."
            )
        self.embed = self.head = None
        tied_inputs = {HEADS[name].tied_input for name in self.chunk.heads} - {""}
        projects = family.output.tied and any(HEADS[name].projects for name in self.chunk.heads)
        if self.chunk.embedded_stacks or projects or tied_inputs:
            self.embed = Embed(spec, self.chunk.embedded_stacks, tied_inputs=tied_inputs)
            for name in tied_inputs:
                cast(Linear, getattr(self.embed, name).project).adds_products = False
        for name, block in family.stacks.items():
            if layers := self.chunk.layers[name]:
                self.add_module(name, _build_stack(spec, name, block, layers))
        for reading in chain(*map(spec.head_inputs, self.chunk.heads)):
            if (read := self.stack(reading.stack)) is not None and reading.layer is not None:
                read.read |= {reading.layer}
        if self.chunk.last or self.chunk.heads:
            self.head = build_heads(spec, self.chunk.heads)

    def to_empty(self, *, device: str | torch.device | int | None, recurse: bool = True) -> Self:
        """Replace the tensors by uninitialized ones on a device.

        `nn.Module` calls an operator that is written in Python for the meta device, and for which torch imports SymPy.
        """
        return self._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device), recurse)

    def keep_layers(self, layers: Mapping[str, Iterable[int]]) -> None:
        """Keep the outputs of layers in forward passes, for `states`. `layers`: stack -> layer indices."""
        for name, numbers in layers.items():
            if (stack := self.stack(name)) is not None:
                stack.read |= {*numbers}

    def forward(
        self,
        batch: dict[str, Tensor],
        x: Tensor | None = None,
        *,
        features: bool = False,
        caches: Mapping[str, StackRecurrenceCache] = NO_CACHES,
    ) -> ModelOutput:
        """Run one pipeline chunk of the model.

        `batch` has ids [B, S] and masks of every stack, on every chunk. `x` [S, B, D] is the output of the previous
        chunk. `features`: return features of contrastive heads instead of losses. `caches`: stack -> recurrence cache,
        which records the inputs of the layers.
        """
        streams, inner = self._run_layers(batch, x, caches=caches)
        batch = self._with_sampled_labels(batch, streams)
        labeled = {name: head for name, head in self._heads_by_name().items() if HEADS[name].label_field in batch}
        if not self.chunk.last:
            filled = [self._pad_to_width(stream) for stream in streams.values()]
            stream = torch.cat(filled) if len(filled) > 1 else filled[0]
            if labeled and not features:
                read = self._head_streams(streams, inner, labeled)
                stream = self.add_losses(stream, self._compute_losses(labeled, read, batch))
            return ModelOutput(stream=stream)
        if features:
            contrasting = {
                name: head for name, head in (labeled or self._heads_by_name()).items() if HEADS[name].contrasts
            }
            read = self._head_streams(streams, inner, contrasting)
            return ModelOutput(
                features={
                    name: cast(ContrastHead, head).features(*read[name], batch=batch)
                    for name, head in contrasting.items()
                }
            )
        if not labeled:
            return ModelOutput(logits=self._logits(streams, inner, batch))
        read = self._head_streams(streams, inner, labeled)
        return ModelOutput(losses=self._compute_losses(labeled, read, batch), states=States(streams, inner))

    def states(self, batch: dict[str, Tensor], *, caches: Mapping[str, StackRecurrenceCache] = NO_CACHES) -> States:
        """Return the outputs of the model's stacks and of the layers of `keep_layers`. The model must be complete.
        `caches` as in `forward`."""
        return States(*self._run_layers(batch, None, caches=caches))

    def attention_scores(self, stack: str, layer: int, x_SBD: Tensor, batch: dict[str, Tensor]) -> Tensor:
        """Return attention scores before the softmax, [B, H, S, S], recomputed from the layer's input; zero if masked
        or at most -100 (released code of TinyBERT)."""
        layers, prefix = self.stack(stack), self.spec.family.prefixes[stack]
        assert isinstance(layers, Stack)
        mask = self_mask(batch, prefix, layers.block.visibility)
        return layers.attention_scores(layer, x_SBD, mask, batch.get(f"{prefix}positions"))

    def set_hash_seed_key(self, key: str | None) -> None:
        """Set the seed key for the hash rotations of LSH attention in each step. None: the key for evaluation."""
        for module in self.modules():
            if isinstance(module, AttentionCore):
                module.set_seed_key(key)

    def encode(self, batch: dict[str, Tensor]) -> Tensor:
        """Return hidden states [B, S, D] of the first stack, or of the stack that reads sampled tokens. The model must
        be complete."""
        assert self.embed is not None
        name = next(iter(self.spec.family.sampled), next(iter(self.spec.family.stacks)))
        stack = self.stack(name)
        assert stack is not None
        batch = self._without_queries(batch)
        mask = self_mask(batch, "", stack.block.visibility)
        x = self.embed(batch, name, self.scatter_sequence)
        fields = _attention_fields(batch, "", stack.block)
        x = stack(x, StackInputs(mask, positions=batch.get("positions"), fields=fields, decode=False))
        return self.gather_sequence(x).transpose(0, 1)

    def begin_step(self, *, seed: int, step: int) -> None:
        """Sample the random numbers that heads need in a training step, equal for all its samples (negatives of a
        sampled softmax)."""
        for head in self._heads_by_name().values():
            if begin_step := getattr(head, "begin_step", None):
                begin_step(seed=seed, step=step)

    def with_sampled_labels(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch with labels that depend on tokens sampled by the model, which must have all layers."""
        return self._with_sampled_labels(batch, self._run_layers(batch, None)[0])

    def logits(
        self,
        batch: dict[str, Tensor],
        x: Tensor | None = None,
        *,
        ended: Mapping[str, Tensor] = NONE_ENDED,
        caches: Mapping[str, StackRecurrenceCache] = NO_CACHES,
    ) -> dict[str, Tensor]:
        """Return the logits of each head.

        - `lm` and `mlm`: [B, S, vocabulary] at every position
        - `next-sentence`: [B, 2]
        - `image-text`: features of both sides and the temperature, [B, 2 E + 1]

        `ended`: stack -> its output [S, B, D], if already computed. `caches` as in `forward`. Queries after the text
        are left out; `forward` returns their logits, too.
        """
        batch = self._without_queries(batch)
        return self._logits(*self._run_layers(batch, x, ended, caches), batch)

    def _without_queries(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the batch without the target positions for which an input adds queries."""
        if not self.spec.family.has_queries:
            return batch
        return {field: value for field, value in batch.items() if field != "masked_positions"}

    def empty_caches(
        self, rows: int, *, num_positions: int | None = None, farthest: int | None = None
    ) -> dict[str, StackRecurrenceCache]:
        """Return empty recurrence caches of the model's stacks that have one. `num_positions`: length; None: that of
        the model's size."""
        caches, like = {}, next(self.parameters())
        for name, layers in self.chunk.layers.items():
            size = self.spec.size_of(name)
            length = size.cached_positions if num_positions is None else num_positions
            block = self.spec.family.stacks[name]
            if layers and length and block.caches_states:
                cached, width = block.cache_shape(size, length)
                caches[name] = StackRecurrenceCache.empty(
                    layers, (cached, rows, width), like=like.detach(), farthest=farthest
                )
        return caches

    def _logits(
        self, streams: dict[str, Tensor], inner: dict[HeadInput, Tensor], batch: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        read, logits = self._head_streams(streams, inner, self._heads_by_name()), {}
        for name, head in self._heads_by_name().items():
            if isinstance(head, ContrastHead):
                logits[name] = head.features(*read[name], batch=batch)
            else:
                logits[name] = head.logits(*read[name], tied=self._tied_table(name))
        return logits

    def _compute_losses(
        self, heads: dict[str, Head], read: dict[str, tuple[Tensor, ...]], batch: dict[str, Tensor]
    ) -> dict[str, Loss]:
        return {name: head.loss(*read[name], batch=batch, tied=self._tied_table(name)) for name, head in heads.items()}

    def _head_streams(
        self, streams: dict[str, Tensor], inner: dict[HeadInput, Tensor], heads: Iterable[str]
    ) -> dict[str, tuple[Tensor, ...]]:
        """Return the hidden states that each head of the model reads: head -> tensors. Each tensor is gathered once."""
        head_inputs = {name: self.spec.head_inputs(name) for name in heads}
        gathered = {
            reading: self.gather_sequence(inner[reading] if reading in inner else streams[reading.stack])
            for reading in dict.fromkeys(chain(*head_inputs.values()))
        }
        return {
            name: tuple(gathered[reading] for reading in head_readings) for name, head_readings in head_inputs.items()
        }

    def _heads_by_name(self) -> dict[str, Head]:
        return {} if self.head is None else cast(dict[str, Head], dict(self.head.items()))

    def _tied_table(self, head: str) -> Any:
        """Return the tied weight of a head of the model."""
        if not (name := HEADS[head].tied_input):
            return self.table
        return getattr(self.embed, name).project.weight

    @property
    def table(self) -> Any:
        """Return the token table of the model's tied heads: its weight, or its module if it is of another kind."""
        if self.embed is None or not self.spec.family.output.tied:
            return None
        return self.embed.token if self.embed.has_own_table else self.embed.token.weight

    def _run_layers(
        self,
        batch: dict[str, Tensor],
        x: Tensor | None,
        ended: Mapping[str, Tensor] = NONE_ENDED,
        caches: Mapping[str, StackRecurrenceCache] = NO_CACHES,
    ) -> tuple[dict[str, Tensor], dict[HeadInput, Tensor]]:
        """Run the layers of this chunk from the embedding, or from the previous chunk's output. Skip stacks in `ended`.
        Return the hidden states and the layer outputs that heads read."""
        prefixes = self.spec.family.prefixes
        inner: dict[HeadInput, Tensor] = {}
        streams = self._embed_inputs(batch, ended) if x is None else self._split_stream(batch, x)
        for name, prefix in prefixes.items():
            if name in self.spec.family.sampled and name in self.chunk.embedded_stacks:
                inner |= self._embed_sampled_tokens(name, batch, streams)
            if (stack := self.stack(name)) is None or name in ended:
                continue
            if (cache := caches.get(name)) is not None and "reset_state" in batch:
                cache.start(batch["reset_state"])
            mask = self_mask(batch, prefix, stack.block.visibility, self.context)
            memory, memory_mask = None, None
            if (source := stack.block.cross) is not None:
                memory, memory_mask = streams[source], cross_mask(batch, prefix, prefixes[source], self.context)
            outputs: dict[int, Tensor] = {EMBEDDED: streams[name]} if EMBEDDED in stack.read else {}
            inputs = StackInputs(
                mask,
                memory,
                memory_mask,
                positions=batch.get(f"{prefix}positions"),
                cache=cache,
                fields=_attention_fields(batch, prefix, stack.block),
                outputs=outputs,
            )
            streams[name] = stack(streams[name], inputs)
            inner |= {HeadInput(name, layer): output for layer, output in outputs.items()}
        return streams, inner

    def stack(self, name: str) -> BaseStack | None:
        """Return the layers of a stack in this chunk of the model, if any."""
        return cast(BaseStack | None, self._modules.get(name))

    def _embed_inputs(self, batch: dict[str, Tensor], ended: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self.embed is not None
        assert self.chunk.first, "only the first chunk embeds; the others receive hidden states"
        streams: dict[str, Tensor] = {}
        for name in self.spec.family.stacks:
            if name in ended:
                streams[name] = ended[name]
            elif name in self.spec.family.sampled:  # its input is not sampled yet
                like = streams[self.spec.family.sampling_stack(name)]
                streams[name] = like.new_zeros(*like.shape[:2], self.spec.size_of(name).width)
            else:
                streams[name] = self.embed(batch, name, self.scatter_sequence)
        return streams

    def _embed_sampled_tokens(
        self, name: str, batch: dict[str, Tensor], streams: dict[str, Tensor]
    ) -> dict[HeadInput, Tensor]:
        """Sample tokens from the head of an earlier stack for a stack that reads them, and embed them. Return the
        hidden states that the sampling head read. In their place the tensor between chunks carries the marks of the
        sampler."""
        assert self.embed is not None
        family, head = self.spec.family, cast(SamplingHead, self._heads_by_name()[self.spec.family.sampled[name].head])
        source, field = family.sampling_stack(name), f"{family.prefixes[name]}tokens"
        ended = streams[source]
        with torch.no_grad():
            tokens, marks_BS = self._sampler_of(name).sample(
                head, self.gather_sequence(ended), batch, batch[field], self.table
            )
            marks_SB1 = self.scatter_sequence(marks_BS.t()[:, :, None].to(ended.dtype))
        streams[name] = self.embed({**batch, field: tokens}, name, self.scatter_sequence)
        streams[source] = marks_SB1.expand_as(ended)
        return {HeadInput(source, None): ended}

    def _with_sampled_labels(self, batch: dict[str, Tensor], streams: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.chunk.last:
            for name in self.spec.family.sampled:
                with torch.no_grad():
                    marks_BS = self.gather_sequence(streams[self.spec.family.sampling_stack(name)])[:, :, 0].t() > 0.5
                batch = self._sampler_of(name).label(batch, marks_BS)
        return batch

    def _sampler_of(self, stack: str) -> InputSampler:
        sampler: InputSampler = load_class(self.spec.family.sampled[stack], "sampler")
        return sampler

    def _split_stream(self, batch: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        """Divide the tensor between pipeline chunks into the hidden states of each stack. Tensor ranks may hold a part
        of each."""
        parts = stream_lengths(batch, self.spec.family)
        lengths = [*parts.values()]
        streams = zip(parts, x.split([n * len(x) // sum(lengths) for n in lengths]), strict=True)
        return {name: stream[..., : self.spec.size_of(name).width] for name, stream in streams}

    def _pad_to_width(self, stream_SBD: Tensor) -> Tensor:
        """Pad the tensor between pipeline chunks with zeros to the width of the widest stack."""
        missing = self.spec.width - stream_SBD.shape[-1]
        return F.pad(stream_SBD, (0, missing)) if missing else stream_SBD

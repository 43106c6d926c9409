"""Text generation: a decoder continues a prompt, an encoder-decoder fills holes, and an encoder or ELECTRA's generator
predicts masked tokens."""

# S sequence, B batch, H heads, K head width, V vocabulary

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.inference.prompt import (
    encode_prompt,
    generating_stack,
    prepare_prompt,
    prompt_ids,
    read_prompt,
    require_use,
    text_batch,
)
from megaptm.inference.trained_model import TrainedModel
from megaptm.layers.attention import Attend, PatternAttend
from megaptm.layers.layer import Layer
from megaptm.layers.pattern import SlidingWindow
from megaptm.layers.stack import Stack
from megaptm.objectives.objective import Prompt
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of sampling the next token of generated text."""

    temperature: float = 0.8
    """Temperature of sampling, by which logits are divided; 0: the most likely token is taken."""
    top_k: int = 50
    """Number of most likely tokens from which the next token is sampled; 0: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise UserError(f"top-k ({self.top_k}) must be 0 or more.")
        if self.temperature and not 1e-3 <= self.temperature <= 1e3:
            raise UserError(f"temperature ({self.temperature}) must be 0, or from 0.001 to 1000.")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise UserError(f"seed ({self.seed}) must be a 64-bit integer.")


class Sampler:
    """Sampler of the tokens of generated text. It runs on the CPU, so that a seed gives the same result on any
    device."""

    def __init__(self, sampling: Sampling, tokenizer: Tokenizer) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(sampling.seed)
        self.tokenizer = tokenizer

    def __call__(self, logits_V: Tensor) -> int:
        logits_V = finite_logits(logits_V, self.tokenizer)
        logits_V[never_generated_ids(self.tokenizer.special)] = float("-inf")
        if self.sampling.temperature == 0:
            return int(logits_V.argmax())
        if 0 < self.sampling.top_k < len(logits_V):
            logits_V[logits_V < logits_V.topk(self.sampling.top_k).values[-1]] = float("-inf")
        probabilities = (logits_V / self.sampling.temperature).softmax(0)
        return int(torch.multinomial(probabilities, 1, generator=self.generator))


def finite_logits(logits_V: Tensor, tokenizer: Tokenizer) -> Tensor:
    """Return the logits [..., V] of the tokenizer's tokens for generation, in float32 on the CPU; the model's table may
    have more. Raise UserError if they are not finite."""
    logits_V = logits_V[..., : tokenizer.vocabulary].float().cpu()
    if not logits_V.isfinite().all():
        raise UserError("the model's logits are NaN or infinite: use another checkpoint (--step).")
    return logits_V


def never_generated_ids(special: SpecialTokens) -> list[int]:
    """Return the token ids that are never generated within a text."""
    return [id_ for id_ in (special.pad, special.begin) if id_ is not None and id_ != special.end]


def continue_text(loaded: TrainedModel, prompt: str, *, tokens: int, sampling: Sampling) -> Iterator[str]:
    """Yield the text by which a decoder continues a prompt, up to a document end or `tokens` tokens."""
    require_use(loaded, "generate")
    text_so_far = prompt_ids(loaded, prompt)
    shown = loaded.tokenizer.decode(text_so_far)
    ids = loaded.config.built_objective.task_for_prompt("text").add_special_tokens(
        text_so_far, loaded.tokenizer.special
    )
    for id_ in continue_ids(loaded, ids, tokens=tokens, sampler=Sampler(sampling, loaded.tokenizer)):
        text_so_far.append(id_)
        text = loaded.tokenizer.decode(text_so_far)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # incomplete bytes of a character
            yield text[len(shown) :]
            shown = text


def continue_ids(loaded: TrainedModel, ids: list[int], *, tokens: int, sampler: Sampler) -> Iterator[int]:
    """Yield the ids with which a decoder continues a prompt, up to a document end or `tokens` tokens. Beyond the
    model's context, the decoder continues from the second half of the context."""
    ids, end = list(ids), loaded.tokenizer.special.end
    limit = loaded.spec.max_text_length
    decoder = loaded.model.stack(generating_stack(loaded))
    assert isinstance(decoder, Stack)
    if decoder.block.caches_states:
        yield from _continue_with_recurrence(loaded, ids, tokens=tokens, sampler=sampler)
        return
    block = decoder.block
    if block.residual.streams > 1 or not all(record.caches_keys for record in block.attentions):
        yield from _continue_without_cache(loaded, ids, tokens=tokens, sampler=sampler)
        return
    with enable_key_value_cache(decoder) as cache:
        cached_ids: list[int] = []
        for _ in range(tokens):
            if limit is not None and len(cached_ids) + len(ids) > limit:
                ids = [*cached_ids, *ids][-(limit // 2) :]
                cached_ids.clear()
                cache.clear()
            start = len(cached_ids)
            batch = {
                "tokens": torch.tensor([ids], device=loaded.device),
                "positions": torch.arange(start, start + len(ids), device=loaded.device)[None],
            }
            with torch.inference_mode():
                id_ = sampler(loaded.model.logits(batch)["lm"][0, -1])
            if id_ == end:
                return
            yield id_
            cached_ids += ids
            ids = [id_]


def _continue_with_recurrence(loaded: TrainedModel, ids: list[int], *, tokens: int, sampler: Sampler) -> Iterator[int]:
    """Continue a decoder with a recurrence cache: each token is a sequence that follows the one before. The cache is as
    long as a training sequence plus its cache."""
    spec, end = loaded.spec, loaded.tokenizer.special.end
    max_positions = spec.context + spec.size_of(generating_stack(loaded)).cached_positions
    caches = loaded.model.empty_caches(1, num_positions=max_positions)
    for _ in range(tokens):
        with torch.inference_mode():
            logits = loaded.model.logits({"tokens": torch.tensor([ids], device=loaded.device)}, caches=caches)
            caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
            id_ = sampler(logits["lm"][0, -1])
        if id_ == end:
            return
        yield id_
        ids = [id_]


def _continue_without_cache(loaded: TrainedModel, ids: list[int], *, tokens: int, sampler: Sampler) -> Iterator[int]:
    """Continue a decoder with LSH or local attention, a custom pattern, or several residual streams, where a new
    token may change all positions: all tokens are processed again for each."""
    limit, end = loaded.spec.max_text_length, loaded.tokenizer.special.end
    for _ in range(tokens):
        if limit is not None and len(ids) > limit:
            ids = ids[-(limit // 2) :]
        with torch.inference_mode():
            id_ = sampler(loaded.model.logits({"tokens": torch.tensor([ids], device=loaded.device)})["lm"][0, -1])
        if id_ == end:
            return
        yield id_
        ids = [*ids, id_]


class CachedAttend(nn.Module):
    """Attention with a key-value cache, so that each token passes through the model once."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        pattern = attend.pattern if isinstance(attend, PatternAttend) else None
        assert pattern is None or isinstance(pattern, SlidingWindow), "blocks attend to later positions"
        self.window = pattern
        self.keys_values: tuple[Tensor, Tensor] | None = None

    def forward(self, q_SBHK: Tensor, k_SBHK: Tensor, v_SBHK: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is None, "only a causal stack without a bias table can be continued token by token"
        if self.keys_values is None:
            self._store_keys(k_SBHK, v_SBHK)
            return self.attend(q_SBHK, k_SBHK, v_SBHK, mask)
        assert len(q_SBHK) == 1, "one new token attends to all before it; several would attend to later ones"
        self._store_keys(torch.cat([self.keys_values[0], k_SBHK]), torch.cat([self.keys_values[1], v_SBHK]))
        distance = torch.arange(len(self.keys_values[0]), device=q_SBHK.device).flip(0)
        attends = torch.ones_like(distance, dtype=torch.bool)
        if self.window is not None:
            attends = distance % self.window.dilation == 0
        return self.attend.attend_by_head(q_SBHK, *self.keys_values, attends[None, None, None]).flatten(2)

    def _store_keys(self, k_SBHK: Tensor, v_SBHK: Tensor) -> None:
        length = 0 if self.window is None else self.window.before * self.window.dilation + 1
        self.keys_values = k_SBHK[-length:], v_SBHK[-length:]


class CachedLinear(nn.Module):
    """Linear layer whose input does not change, such as an encoder's output: computed once."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.output: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.output is None:
            self.output = self.linear(x)
        return self.output


@dataclass(frozen=True)
class KeyValueCache:
    """Key-value caches of the layers of a stack."""

    layers: list[CachedAttend]

    def clear(self) -> None:
        for layer in self.layers:
            layer.keys_values = None

    def select(self, rows_B: Tensor) -> None:
        """Select sequences of the key-value cache."""
        for layer in self.layers:
            if layer.keys_values is not None:
                keys, values = layer.keys_values
                layer.keys_values = keys.index_select(1, rows_B), values.index_select(1, rows_B)


@contextmanager
def enable_key_value_cache(stack: Stack) -> Iterator[KeyValueCache]:
    """Enable the key-value cache of a stack's self-attention in this context; cross-attention keys and values are
    computed once."""
    layers = [layer for layer in stack.values() if isinstance(layer, Layer)]
    cache = KeyValueCache([CachedAttend(cast(Attend, layer.attention.attend)) for layer in layers])
    try:
        for layer, cached in zip(layers, cache.layers, strict=True):
            layer.attention.attend = cached  # type: ignore[assignment]  # same inputs and outputs
            if stack.block.cross is not None:
                layer.cross.kv = CachedLinear(layer.cross.kv)  # type: ignore[assignment]  # same inputs and outputs
        yield cache
    finally:
        for layer, cached in zip(layers, cache.layers, strict=True):
            layer.attention.attend = cached.attend
            if stack.block.cross is not None and isinstance(cached_kv := layer.cross.kv, CachedLinear):
                layer.cross.kv = cached_kv.linear  # type: ignore[assignment]


def fill_holes(loaded: TrainedModel, prompt: str, *, tokens: int, sampling: Sampling) -> str:
    """Return a prompt whose sentinels (T5's `<extra_id_0>` ...) are replaced by generated text. Without sentinels, as
    for BART's masks, return the complete output of the decoder."""
    return "".join(text for text, _ in fill_parts(loaded, prompt, tokens=tokens, sampling=sampling))


def fill_parts(loaded: TrainedModel, prompt: str, *, tokens: int, sampling: Sampling) -> list[tuple[str, bool]]:
    """Return the result of `fill_holes` in parts, each with a flag whether the model generated it."""
    require_use(loaded, "fill")
    special, tokenizer = loaded.tokenizer.special, loaded.tokenizer
    kind, ids = read_prompt(loaded, prompt)
    output = generate_ids(loaded, ids, kind=kind, tokens=tokens, sampler=Sampler(sampling, tokenizer))
    if kind != "sentinels":
        return [(tokenizer.decode([*output]), True)]
    holes = [id_ for id_ in ids if id_ in special.sentinels]
    fillings: list[int] = []
    for id_ in output:
        if id_ in special.sentinels and id_ not in holes:
            break  # a hole that is not in the prompt: ignore the rest of the output
        fillings.append(id_)
    parts, before, shown = [], [], ""
    for part, is_generated in insert_fillings(ids, fillings, holes):
        before += part
        text = tokenizer.decode(before)  # decoded with the preceding text, which determines spaces
        parts.append((text[len(shown) :], is_generated))
        shown = text
    return parts


def generate_ids(
    loaded: TrainedModel, ids: list[int], *, kind: Prompt = "text", tokens: int, sampler: Sampler
) -> Iterator[int]:
    """Yield the output ids of a model for a prompt, up to the end or `tokens` tokens."""
    special = loaded.tokenizer.special
    text, decoder_ids, tokens = prepare_prompt(loaded, kind, ids, tokens)
    if decoder_ids is text:  # decoder-only model
        yield from continue_ids(loaded, text, tokens=tokens, sampler=sampler)
        return
    (encoder, _), (_, prefix) = loaded.spec.family.prefixes.items()
    batch = text_batch(loaded, [text])
    with torch.inference_mode():
        ended = {encoder: loaded.model.encode(batch).transpose(0, 1)}
    for _ in range(tokens):
        batch[f"{prefix}tokens"] = torch.tensor([decoder_ids], device=loaded.device)
        with torch.inference_mode():
            id_ = sampler(loaded.model.logits(batch, ended=ended)["lm"][0, -1])
        if id_ == special.end:
            return
        yield id_
        decoder_ids.append(id_)


def insert_fillings(ids: list[int], output: list[int], holes: list[int]) -> list[tuple[list[int], bool]]:
    """Insert generated text into the holes of a prompt: return `ids` in parts, each with a flag whether it was
    generated. Each hole is replaced by the output after its sentinel (empty if the output lacks it)."""
    fillings: dict[int, list[int]] = {hole: [] for hole in holes}
    first = next((index for index, id_ in enumerate(output) if id_ in fillings), len(output))
    for id_ in output[first:]:
        if id_ in fillings:
            hole = id_
        else:
            fillings[hole].append(id_)
    runs = groupby(ids, key=lambda id_: id_ if id_ in fillings else None)
    return [([*run], False) if hole is None else (fillings[hole], True) for hole, run in runs]


@dataclass(frozen=True)
class TokenPrediction:
    """Predicted token of a mask."""

    token: str
    """Name of the predicted token in the vocabulary."""
    probability: float
    shown: str
    """Readable form of the predicted token (`Tokenizer.format_token`)."""


def predict_masks(loaded: TrainedModel, prompt: str, *, guesses: int) -> list[list[TokenPrediction]]:
    """Return the most likely tokens of an encoder or generator for each mask in the prompt."""
    require_use(loaded, "guess")
    special, tokenizer = loaded.tokenizer.special, loaded.tokenizer
    if special.mask is None:
        raise UserError(f"the tokenizer {loaded.tokenizer_folder} has no mask token, which guess needs.")
    mask, task = tokenizer.name(special.mask), loaded.config.built_objective.task_for_prompt("masks")
    ids = task.add_special_tokens(encode_prompt(tokenizer, prompt, (special.mask,)), special)
    if special.mask not in ids:
        raise UserError(f"the prompt needs a {mask} for the model to predict: 'The {mask} sat on the mat.'")
    if loaded.spec.max_text_length is not None and len(ids) > loaded.spec.max_text_length:
        raise UserError(
            f"the prompt has {len(ids)} tokens, more than the {loaded.spec.max_text_length} that the model reads: "
            "shorten it."
        )
    batch = text_batch(loaded, [ids])
    with torch.inference_mode():
        logits_SV = loaded.model.logits(batch)["mlm"][0]
    probabilities_AV = finite_logits(logits_SV[batch["tokens"][0] == special.mask], tokenizer).softmax(-1)
    return [
        [
            TokenPrediction(tokenizer.name(id_), probability, tokenizer.format_token(id_))
            for probability, id_ in zip(*map(Tensor.tolist, best), strict=True)
        ]
        for best in (row.topk(min(guesses, len(row))) for row in probabilities_AV)
    ]

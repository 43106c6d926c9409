"""Beam search: the most likely output of an encoder-decoder for a text, such as its translation."""

# S sequence, B beams, D width, V vocabulary

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.inference.generate import enable_key_value_cache, finite_logits, never_generated_ids
from megaptm.inference.prompt import generating_stack, prepare_prompt, prompt_ids, require_use, text_batch
from megaptm.inference.trained_model import TrainedModel
from megaptm.layers.stack import Stack

# Every beam is one sequence of a batch.
MAX_BEAMS = 1024
# Bounded so that the penalty of any length is finite.
MAX_PENALTY = 10
Step = Callable[[list[list[int]], list[int]], Tensor]
"""Function that computes a step of beam search. Arguments: the output of each beam, and the index of its parent in the
previous step. It returns the logits [B, V] of the next token."""


@dataclass(frozen=True, kw_only=True)
class Beam:
    """Beam width and length penalty; defaults of the Transformer (arXiv:1706.03762, section 6.1)."""

    width: int = 4
    length_penalty: float = 0.6

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_BEAMS:
            raise UserError(f"beams ({self.width}) must be from 1 to {MAX_BEAMS:,}.")
        if not 0 <= self.length_penalty <= MAX_PENALTY:
            raise UserError(
                f"length-penalty ({self.length_penalty}) must be from 0 to {MAX_PENALTY}; higher values favor longer "
                "outputs."
            )

    def score(self, log_prob: float, length: int) -> float:
        """Return the score of an output of `length` tokens with its end token in beam search, from its log-probability
        (arXiv:1609.08144, equation 14, without coverage)."""
        return log_prob / ((5 + length) / 6) ** self.length_penalty


@dataclass(frozen=True)
class Hypothesis:
    """Output of beam search and its score."""

    ids: list[int]
    score: float


def generate_by_beam(loaded: TrainedModel, prompt: str, *, tokens: int, beam: Beam) -> str:
    """Generate by beam search: return the best output for a text, with at most `tokens` tokens."""
    require_use(loaded, "fill")
    if loaded.spec.family.stacks[generating_stack(loaded)].cross is None:
        raise UserError(f"{loaded.spec.name} has no encoder, which beam search needs: use fill, without beams.")
    return loaded.tokenizer.decode(beam_search(loaded, prompt_ids(loaded, prompt), tokens=tokens, beam=beam)[0].ids)


def beam_search(loaded: TrainedModel, ids: list[int], *, tokens: int, beam: Beam) -> list[Hypothesis]:
    """Search with beams: return at most `beam.width` outputs for a text, best first; truncated ones if too few end
    within `tokens`."""
    special = loaded.tokenizer.special
    text, decoder_start, tokens = prepare_prompt(loaded, "text", ids, tokens)
    generated: list[list[int]] = [[] for _ in range(beam.width)]
    # All beams start equal: only the first is expanded.
    totals = [0.0] + [-math.inf] * (beam.width - 1)
    parents = list(range(beam.width))
    ended: list[Hypothesis] = []
    with _open_decoder(loaded, text, decoder_start, beam.width) as step:
        for length in range(1, tokens + 1):
            logits_BV = finite_logits(step(generated, parents), loaded.tokenizer)
            log_probs_BV = logits_BV.log_softmax(-1) + torch.tensor(totals)[:, None]
            log_probs_BV[:, never_generated_ids(special)] = -math.inf
            live: list[tuple[float, int, int]] = []
            best = log_probs_BV.flatten().topk(min(2 * beam.width, log_probs_BV.numel()))
            # Twice as many as beams: enough remain even if the better half all end.
            for index, (log_prob, flat_index) in enumerate(
                zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ):
                parent, id_ = divmod(flat_index, log_probs_BV.shape[1])
                if id_ != special.end:
                    live.append((log_prob, parent, id_))
                elif index < beam.width and log_prob > -math.inf:
                    ended.append(Hypothesis(generated[parent], beam.score(log_prob, length)))
            live = live[: beam.width]
            totals, parents = [log_prob for log_prob, _, _ in live], [parent for _, parent, _ in live]
            generated = [[*generated[parent], id_] for _, parent, id_ in live]
            ended = sorted(ended, key=attrgetter("score"), reverse=True)[: beam.width]
            # Log-probabilities only decrease, and the length penalty improves a score at most to that of the full
            # length.
            if len(ended) == beam.width and ended[-1].score >= beam.score(totals[0], tokens):
                return ended
    truncated = [
        Hypothesis(ids, beam.score(total, tokens))
        for ids, total in zip(generated, totals, strict=True)
        if total > -math.inf
    ]
    return sorted(ended + truncated, key=attrgetter("score"), reverse=True)[: beam.width]


@contextmanager
def _open_decoder(loaded: TrainedModel, text: list[int], decoder_start: list[int], beams: int) -> Iterator[Step]:
    """Yield the function that computes a step of beam search by a model that has read a text. It uses a key-value cache
    if positions allow it. `decoder_start`: first tokens of the decoder."""
    model = loaded.model
    (encoder, _), (decoder, decoder_prefix) = loaded.spec.family.prefixes.items()
    stack = model.stack(decoder)
    assert stack is not None
    batch = text_batch(loaded, [text])
    with torch.inference_mode():
        memory_SBD = model.encode(batch).transpose(0, 1).expand(-1, beams, -1)
    batch = {name: field.expand(beams, -1) for name, field in batch.items()}
    # The output is read again for each token by recurrent decoders, with score biases, and with user-defined patterns,
    # which may depend on the length.
    caches = (
        isinstance(stack, Stack)
        and not stack.block.score_bias
        and all(record.caches_keys for record in stack.block.attentions)
    )
    with enable_key_value_cache(cast(Stack, stack)) if caches else nullcontext() as cache:

        def step(generated: list[list[int]], parents: list[int]) -> Tensor:
            decoder_ids = torch.tensor([[*decoder_start, *ids] for ids in generated], device=loaded.device)
            if cache is not None:
                cache.select(torch.tensor(parents, device=loaded.device))
                new = decoder_ids.shape[1] if not generated[0] else 1
                positions = torch.arange(decoder_ids.shape[1], device=loaded.device)
                batch[f"{decoder_prefix}positions"] = positions[-new:].expand(beams, -1)
                decoder_ids = decoder_ids[:, -new:]
            batch[f"{decoder_prefix}tokens"] = decoder_ids
            with torch.inference_mode():
                return model.logits(batch, ended={encoder: memory_SBD})["lm"][:, -1]

        yield step

"""Masked spans of words, and their replacement (SpanBERT, arXiv:1907.10529, 3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from megaptm.objectives.denoise import Hide, Show
from megaptm.objectives.replacements import replace_hidden, span_starts
from megaptm.objectives.vocabulary import SpecialTokens

GEOMETRIC_WEIGHTS = tuple(0.2 * 0.8**n for n in range(10))


def mask_spans(*, rate: float, max_masked: int, unit_starts: np.ndarray, length_weights: Sequence[float] = ()) -> Hide:
    """Mask SpanBERT's spans of complete words, which start anywhere, until ceil(rate x ordinary tokens) are masked; the
    last span is truncated. `length_weights`: relative frequencies of 1, 2 ... words; empty: geometric, p = 0.2, up to
    ten (SpanBERT, arXiv:1907.10529, 3.1). Spans may touch or overlap; they then count as one."""
    weights = np.asarray(length_weights or GEOMETRIC_WEIGHTS, dtype=float)
    probabilities = weights / weights.sum()

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        ordinary = ~special.is_special[tokens]
        # A word ends where the next starts. Special tokens, and the rest of a word after one, belong to no word.
        starts = np.flatnonzero((np.asarray(unit_starts) > 0) | ~ordinary)
        stops = np.append(starts[1:], len(tokens))
        hidden = np.zeros(len(tokens), dtype=bool)
        words = np.flatnonzero(ordinary[starts])
        remaining = min(max_masked, math.ceil(rate * np.count_nonzero(ordinary)), int((stops - starts)[words].sum()))
        while remaining > 0:
            first_word = int(words[rng.integers(len(words))])
            if hidden[starts[first_word]]:
                continue
            for word in range(
                first_word, min(first_word + 1 + int(rng.choice(len(probabilities), p=probabilities)), len(starts))
            ):
                if not ordinary[starts[word]]:
                    break
                positions = np.arange(starts[word], stops[word])
                unmasked = positions[~hidden[positions]][:remaining]
                hidden[unmasked] = True
                remaining -= len(unmasked)
        return hidden

    return hide


def replace_spans(*, mask_token_prob: float, random_token_prob: float) -> Show:
    """Return SpanBERT's replacement of masked spans: as `replacements.replace_tokens`, with one choice for each span of
    masked tokens."""

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        first = span_starts(hidden)
        uniforms = rng.random(np.count_nonzero(first))[np.cumsum(first)[hidden] - 1]
        return replace_hidden(
            tokens, hidden, uniforms, special, rng, mask_token_prob=mask_token_prob, random_token_prob=random_token_prob
        )

    return show


MASKING_STRATEGIES = {"spans": mask_spans}
REPLACEMENT_STRATEGIES = {"spans": replace_spans}

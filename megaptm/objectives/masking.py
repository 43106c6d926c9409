"""Masking strategies: functions of the tokens that choose which to mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from megaptm.families import Registry, contributions
from megaptm.objectives.denoise import Hide
from megaptm.objectives.vocabulary import SpecialTokens


def mask_single_tokens(*, rate: float, max_masked: int) -> Hide:
    """Mask a fixed number of single tokens: round(rate x all tokens), at least 1, at most `max_masked`; never a special
    token.

    The length includes special tokens, as in BERT's `create_pretraining_data.py`.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        candidates = np.flatnonzero(~special.is_special[tokens])
        count = min(max_masked, max(1, round(rate * len(tokens))), len(candidates))
        hidden = np.zeros(len(tokens), dtype=bool)
        hidden[rng.choice(candidates, count, replace=False, shuffle=False)] = True
        return hidden

    return hide


def _single_tokens_with_repeats(*, rate: float, max_masked: int) -> Hide:
    """Mask single tokens, as many as `mask_single_tokens` but sampled with replacement: at rate 0.15, 7 of 100 repeat.

    The rule of ELECTRA's released code, except that a position sampled twice counts once in the loss
    (docs/objectives.md).
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        candidates = np.flatnonzero(~special.is_special[tokens])
        hidden = np.zeros(len(tokens), dtype=bool)
        if len(candidates):
            hidden[rng.choice(candidates, min(max_masked, max(1, round(rate * len(tokens)))))] = True
        return hidden

    return hide


def mask_whole_words(*, rate: float, max_masked: int, unit_starts: np.ndarray) -> Hide:
    """Mask complete words in random order, up to as many tokens as `mask_single_tokens`. Words that exceed the
    remaining number, or have a special token, are skipped.

    `unit_starts`: 1 at the first token of each word, one entry per token. The rule of `do_whole_word_mask` in BERT's
    `create_pretraining_data.py`.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        return _choose_units(
            np.cumsum(unit_starts) - 1, tokens, special, rng, max_masked=min(max_masked, round(rate * len(tokens)))
        )

    return hide


def _choose_units(
    unit: np.ndarray, tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator, *, max_masked: int
) -> np.ndarray:
    """Mask complete units: return a boolean mask [tokens] of units in random order, up to `max_masked` tokens but at
    least one. Units that exceed the remaining number, or have a special token, are skipped. `unit`: index of the unit
    of each token."""
    lengths = np.bincount(unit)
    lengths[unit[special.is_special[tokens]]] = len(tokens) + 1
    remaining = max(1, max_masked)
    chosen = np.zeros(len(lengths), dtype=bool)
    order = rng.permutation(len(lengths))
    for unit_index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if length <= remaining:
            chosen[unit_index] = True
            remaining -= length
            if not remaining:
                break
    return chosen[unit]


def mask_independently(*, rate: float, max_masked: int, unit_starts: np.ndarray) -> Hide:
    """Mask each unit independently with probability `rate`, at least one, and at most `max_masked` tokens in order of
    sampling (ERNIE 1.0, released code).

    A special token inside a unit, such as that of an unknown piece, ends the unit; the rest is never masked.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        is_special = special.is_special[tokens]
        after_special = np.concatenate(([False], is_special[:-1])) & (unit_starts == 0)
        unit = np.cumsum((unit_starts > 0) | is_special | after_special) - 1
        lengths = np.bincount(unit)
        uniforms = rng.random(len(lengths))
        uniforms[unit[is_special | after_special]] = 1
        uniforms[lengths > max_masked] = 1
        order = np.argsort(uniforms)
        num_chosen = max(1, np.count_nonzero(uniforms < rate))
        chosen_units = order[:num_chosen][
            (np.cumsum(lengths[order[:num_chosen]]) <= max_masked) & (uniforms[order[:num_chosen]] < 1)
        ]
        chosen = np.zeros(len(lengths), dtype=bool)
        chosen[chosen_units] = True
        return chosen[unit]

    return hide


def mask_ngrams(*, rate: float, max_masked: int, unit_starts: np.ndarray, length_weights: Sequence[float] = ()) -> Hide:
    """Mask n-grams of complete words as `mask_whole_words` does. `length_weights`: relative frequencies of 1, 2 ...
    words; empty: 1/n up to three (ALBERT, arXiv:1909.11942, 3.1).

    The text is partitioned into n-grams of random lengths, some of which are masked. This gives exactly the requested
    frequencies. Sampling positions first and lengths second would not, where n-grams meet.
    """
    weights = np.asarray(length_weights or INVERSE_LENGTH, dtype=float)
    probabilities = weights / weights.sum()

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        word = np.cumsum(unit_starts) - 1
        words = int(word.max(initial=-1)) + 1  # none in a sequence without text
        stops = np.cumsum(rng.choice(len(probabilities), words, p=probabilities) + 1)
        first = np.zeros(words + 1, dtype=bool)
        first[stops[stops < words]] = True
        # No n-gram contains a special token, which separates texts.
        special_words = word[special.is_special[tokens]]
        first[special_words] = first[special_words + 1] = True
        unit = np.cumsum(first)
        return _choose_units(unit[word], tokens, special, rng, max_masked=min(max_masked, round(rate * len(tokens))))

    return hide


def _mask_token_ngrams(*, rate: float, max_masked: int, length_weights: Sequence[float] = ()) -> Hide:
    """Mask n-grams of tokens, independent of words, as `mask_ngrams` does."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        each = np.ones(len(tokens), dtype=np.int64)
        return mask_ngrams(rate=rate, max_masked=max_masked, unit_starts=each, length_weights=length_weights)(
            tokens, special, rng
        )

    return hide


INVERSE_LENGTH = (1.0, 1 / 2, 1 / 3)

MASKING_STRATEGIES: Registry[Callable[..., Hide]] = Registry(
    {
        "tokens": mask_single_tokens,
        "tokens-with-repeats": _single_tokens_with_repeats,
        "whole-words": mask_whole_words,
        "independent": mask_independently,
        "ngrams": mask_ngrams,
        "token-ngrams": _mask_token_ngrams,
    },
    lambda: chain.from_iterable(map(dict.items, contributions("masking", "MASKING_STRATEGIES"))),
)
"""Masking strategies of masked-lm by name. Arguments are `rate` and `max_masked`, and, if the function has them,
`unit_starts` (first tokens of units) and `length_weights` (relative frequencies of 1, 2 ... words)."""


def mask_random_tokens(*, rate: float) -> Hide:
    """Mask exactly `num_masked_tokens` single tokens, all equally likely.

    T5 masks each token independently. A fixed number keeps sequences equally long.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        hidden = np.zeros(len(tokens), dtype=bool)
        count = num_masked_tokens(len(tokens), rate=rate)
        hidden[rng.choice(len(tokens), count, replace=False, shuffle=False)] = True
        return hidden

    return hide


def num_masked_tokens(length: int, *, rate: float) -> int:
    """Return the number of tokens that `mask_random_tokens` masks: round(rate x length), but at least 1 if there are
    tokens."""
    return max(round(rate * length), min(length, 1))


def mask_one_span(*, rate: float) -> Hide:
    """Mask one span of as many tokens as `mask_random_tokens`, at a uniform position (MASS)."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        count = num_masked_tokens(len(tokens), rate=rate)
        start = int(rng.integers(len(tokens) - count + 1))
        positions = np.arange(len(tokens))
        hidden: np.ndarray = (positions >= start) & (positions < start + count)
        return hidden

    return hide


def mask_all(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """Mask all tokens of a text."""
    return np.ones(len(tokens), dtype=bool)


def max_suffix(tokens: int, *, rate: float) -> int:
    """Return the maximum number of masked tokens of `mask_suffix`: twice the mean, and at most all but one."""
    return min(tokens - 1, max(1, round(2 * rate * tokens)))


def mask_suffix(*, rate: float) -> Hide:
    """Mask the last 1, 2 ... or `max_suffix` tokens, each equally likely: on average a share of `rate`. A single token
    is not masked."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        length = len(tokens)
        border = int(rng.integers(length - max_suffix(length, rate=rate), length)) if length > 1 else 1
        return np.arange(length) >= border

    return hide


def mask_random_spans(*, rate: float, mean_span_length: float) -> Hide:
    """Mask random spans: exactly round(rate x tokens) tokens in round(that / mean_span_length) spans, no two adjacent,
    the first token never masked.

    Lengths of masked and unmasked parts are random partitions, in alternation (T5, arXiv:1910.10683, 3.1.4).
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        noise, spans = num_masked_spans(len(tokens), rate=rate, mean_span_length=mean_span_length)
        if not spans:
            return np.zeros(len(tokens), dtype=bool)
        lengths = np.empty(2 * spans, dtype=np.int64)
        lengths[0::2] = random_partition(len(tokens) - noise, spans, rng)
        lengths[1::2] = random_partition(noise, spans, rng)
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)

    return hide


def num_masked_spans(length: int, *, rate: float, mean_span_length: float) -> tuple[int, int]:
    """Return the number of tokens and spans that `mask_random_spans` masks. A single token is not masked."""
    if length < 2:
        return 0, 0
    noise = min(max(round(rate * length), 1), length - 1)
    # An unmasked token precedes each span.
    return noise, min(max(round(noise / mean_span_length), 1), length - noise)


def random_partition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Return a random partition of `total`: positive lengths that sum to it, uniform over all compositions, int64
    [parts]."""
    borders = np.sort(rng.choice(total - 1, parts - 1, replace=False, shuffle=False)) + 1
    return np.diff(borders, prepend=0, append=total)

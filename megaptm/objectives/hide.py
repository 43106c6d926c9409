"""Masking strategies: functions of the tokens that choose which to mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from megaptm.objectives.denoise import Hide
from megaptm.objectives.vocabulary import SpecialTokens


def iid(*, rate: float, most: int) -> Hide:
    """Mask a fixed number of single tokens: round(rate x all tokens), at least 1, at most `most`; never a special
    token.

    The length includes special tokens, as in BERT's `create_pretraining_data.py`.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        candidates = np.flatnonzero(~special.is_special[tokens])
        count = min(most, max(1, round(rate * len(tokens))), len(candidates))
        hidden = np.zeros(len(tokens), dtype=bool)
        hidden[rng.choice(candidates, count, replace=False, shuffle=False)] = True
        return hidden

    return hide


def iid_with_repeats(*, rate: float, most: int) -> Hide:
    """Mask single tokens, with as many draws as `iid` but with replacement: at rate 0.15, 7 of 100 draws repeat.

    The rule of ELECTRA's released code, except that a position sampled twice counts once in the loss
    (docs/objectives.md).
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        candidates = np.flatnonzero(~special.is_special[tokens])
        hidden = np.zeros(len(tokens), dtype=bool)
        if len(candidates):
            hidden[rng.choice(candidates, min(most, max(1, round(rate * len(tokens)))))] = True
        return hidden

    return hide


def whole_words(*, rate: float, most: int, begins: np.ndarray) -> Hide:
    """Mask complete words in random order, up to as many tokens as `iid`. Words that exceed the remaining number are
    skipped, and so are words with a special token.

    `begins`: 1 at the first token of each word, one entry per token. The rule of `do_whole_word_mask` in BERT's
    `create_pretraining_data.py`.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        return some_units(np.cumsum(begins) - 1, tokens, special, rng, most=min(most, round(rate * len(tokens))))

    return hide


def some_units(
    unit: np.ndarray, tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator, *, most: int
) -> np.ndarray:
    """Return a boolean mask [tokens] of complete units in random order, up to `most` tokens but at least one. Units
    that exceed the remaining number, or have a special token, are skipped. `unit`: index of the unit of each token."""
    lengths = np.bincount(unit)
    lengths[unit[special.is_special[tokens]]] = len(tokens) + 1
    left = max(1, most)
    chosen = np.zeros(len(lengths), dtype=bool)
    order = rng.permutation(len(lengths))
    for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if length <= left:
            chosen[number] = True
            left -= length
            if not left:
                break
    return chosen[unit]


def independent(*, rate: float, most: int, begins: np.ndarray) -> Hide:
    """Mask each unit independently with probability `rate`, at least one, and at most `most` tokens in order of
    sampling (ERNIE 1.0, released code).

    A special token inside a unit, such as that of an unknown piece, ends the unit; the rest is never masked.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        apart = special.is_special[tokens]
        behind = np.concatenate(([False], apart[:-1])) & (begins == 0)
        unit = np.cumsum((begins > 0) | apart | behind) - 1
        lengths = np.bincount(unit)
        numbers = rng.random(len(lengths))
        numbers[unit[apart | behind]] = 1
        numbers[lengths > most] = 1
        order = np.argsort(numbers)
        wanted = max(1, np.count_nonzero(numbers < rate))
        drawn = order[:wanted][(np.cumsum(lengths[order[:wanted]]) <= most) & (numbers[order[:wanted]] < 1)]
        chosen = np.zeros(len(lengths), dtype=bool)
        chosen[drawn] = True
        return chosen[unit]

    return hide


def ngrams(*, rate: float, most: int, begins: np.ndarray, lengths: Sequence[float] = ()) -> Hide:
    """Mask n-grams of complete words as `whole_words` does. `lengths`: relative frequencies of 1, 2 ... words; empty:
    1/n up to three (ALBERT, arXiv:1909.11942, 3.1).

    The text is partitioned into n-grams of random lengths, some of which are masked. This gives exactly the requested
    frequencies. Sampling positions first and lengths second would not, where n-grams meet.
    """
    share = _shares(lengths or INVERSE)

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        word = np.cumsum(begins) - 1
        words = int(word.max(initial=-1)) + 1  # none in a sequence without text
        ends = np.cumsum(rng.choice(len(share), words, p=share) + 1)
        first = np.zeros(words + 1, dtype=bool)
        first[ends[ends < words]] = True
        # No n-gram contains a special token, which separates texts.
        apart = word[special.is_special[tokens]]
        first[apart] = first[apart + 1] = True
        unit = np.cumsum(first)
        return some_units(unit[word], tokens, special, rng, most=min(most, round(rate * len(tokens))))

    return hide


def token_ngrams(*, rate: float, most: int, lengths: Sequence[float] = ()) -> Hide:
    """Mask n-grams of tokens, independent of words, as `ngrams` does."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        each = np.ones(len(tokens), dtype=np.int64)
        return ngrams(rate=rate, most=most, begins=each, lengths=lengths)(tokens, special, rng)

    return hide


def spans(*, rate: float, most: int, begins: np.ndarray, lengths: Sequence[float] = ()) -> Hide:
    """Mask spans of complete words that start anywhere, until ceil(rate x ordinary tokens) are masked; the last span is
    truncated. `lengths`: relative frequencies of 1, 2 ... words; empty: geometric, p = 0.2, up to ten (SpanBERT,
    arXiv:1907.10529, 3.1). Spans may touch or overlap; they then count as one."""
    share = _shares(lengths or GEOMETRIC)

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        ordinary = ~special.is_special[tokens]
        # A word ends where the next starts. Special tokens, and the rest of a word after one, belong to no word.
        starts = np.flatnonzero((np.asarray(begins) > 0) | ~ordinary)
        stops = np.append(starts[1:], len(tokens))
        hidden = np.zeros(len(tokens), dtype=bool)
        words = np.flatnonzero(ordinary[starts])
        left = min(most, math.ceil(rate * np.count_nonzero(ordinary)), int((stops - starts)[words].sum()))
        while left > 0:
            number = int(words[rng.integers(len(words))])
            if hidden[starts[number]]:
                continue
            for word in range(number, min(number + 1 + int(rng.choice(len(share), p=share)), len(starts))):
                if not ordinary[starts[word]]:
                    break
                here = np.arange(starts[word], stops[word])
                new = here[~hidden[here]][:left]
                hidden[new] = True
                left -= len(new)
        return hidden

    return hide


def _shares(weights: Sequence[float]) -> np.ndarray:
    return np.asarray(weights, dtype=float) / np.sum(weights)


INVERSE = (1.0, 1 / 2, 1 / 3)
GEOMETRIC = tuple(0.2 * 0.8**n for n in range(10))

HIDES: dict[str, Callable[..., Hide]] = {
    "tokens": iid,
    "tokens-with-repeats": iid_with_repeats,
    "whole-words": whole_words,
    "independent": independent,
    "ngrams": ngrams,
    "token-ngrams": token_ngrams,
    "spans": spans,
}
"""Masking strategies of masked-lm by name. Arguments are `rate` and `most`, and, if the function has them, `begins`
(first tokens of words) and `lengths` (frequencies of lengths)."""


def random_tokens(*, rate: float) -> Hide:
    """Mask exactly `single_count` single tokens, all equally likely.

    T5 masks each token independently. A fixed number keeps sequences equally long.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        hidden = np.zeros(len(tokens), dtype=bool)
        count = single_count(len(tokens), rate=rate)
        hidden[rng.choice(len(tokens), count, replace=False, shuffle=False)] = True
        return hidden

    return hide


def single_count(length: int, *, rate: float) -> int:
    """Return the number of tokens that `random_tokens` masks: round(rate x tokens), at least 1 if there are any."""
    return max(round(rate * length), min(length, 1))


def one_span(*, rate: float) -> Hide:
    """Mask one span of as many tokens as `random_tokens`, at a uniform position (MASS)."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        count = single_count(len(tokens), rate=rate)
        begin = int(rng.integers(len(tokens) - count + 1))
        places = np.arange(len(tokens))
        hidden: np.ndarray = (places >= begin) & (places < begin + count)
        return hidden

    return hide


def everything(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """Mask all tokens."""
    return np.ones(len(tokens), dtype=bool)


def second_part(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """Mask everything after a prefix of 1, 2 ... or all but one tokens, each equally likely. A single token is not
    masked."""
    border = int(rng.integers(1, len(tokens))) if len(tokens) > 1 else 1
    return np.arange(len(tokens)) >= border


def random_spans(*, rate: float, mean: float) -> Hide:
    """Mask exactly round(rate x tokens) tokens in round(that / mean) spans, no two adjacent, the first token never
    masked.

    Lengths of masked and unmasked parts are random partitions, in alternation (T5, arXiv:1910.10683, 3.1.4).
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        noise, spans = span_counts(len(tokens), rate=rate, mean=mean)
        if not spans:
            return np.zeros(len(tokens), dtype=bool)
        lengths = np.empty(2 * spans, dtype=np.int64)
        lengths[0::2] = random_partition(len(tokens) - noise, spans, rng)
        lengths[1::2] = random_partition(noise, spans, rng)
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths)

    return hide


def span_counts(length: int, *, rate: float, mean: float) -> tuple[int, int]:
    """Return the number of tokens and spans that `random_spans` masks. A single token is not masked."""
    if length < 2:
        return 0, 0
    noise = min(max(round(rate * length), 1), length - 1)
    # An unmasked token precedes each span.
    return noise, min(max(round(noise / mean), 1), length - noise)


def random_partition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Return positive lengths that sum to `total`, uniform over all compositions, int64 [parts]."""
    borders = np.sort(rng.choice(total - 1, parts - 1, replace=False, shuffle=False)) + 1
    return np.diff(borders, prepend=0, append=total)

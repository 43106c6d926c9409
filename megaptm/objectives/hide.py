"""What is hidden of a text: the ways to hide, each a function of its tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from megaptm.objectives.denoise import Hide
from megaptm.objectives.vocabulary import SpecialTokens


def iid(*, rate: float, most: int) -> Hide:
    """A fixed number of single tokens: round(rate x all tokens), at least 1, at most `most`; never a special one.

    The length counts the special tokens, as in the `create_pretraining_data.py` of BERT.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        candidates = np.flatnonzero(~special.is_special[tokens])
        count = min(most, max(1, round(rate * len(tokens))), len(candidates))
        hidden = np.zeros(len(tokens), dtype=bool)
        hidden[rng.choice(candidates, count, replace=False, shuffle=False)] = True
        return hidden

    return hide


def iid_with_repeats(*, rate: float, most: int) -> Hide:
    """Single tokens, as many draws as `iid` hides, where one may be drawn again: at a rate of 0.15, 7 in 100 are.

    The rule of ELECTRA's released code, but that a place drawn twice counts once in the loss (docs/objectives.md).
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        candidates = np.flatnonzero(~special.is_special[tokens])
        hidden = np.zeros(len(tokens), dtype=bool)
        if len(candidates):
            hidden[rng.choice(candidates, min(most, max(1, round(rate * len(tokens)))))] = True
        return hidden

    return hide


def whole_words(*, rate: float, most: int, begins: np.ndarray) -> Hide:
    """As many tokens as `iid` hides, or a few less: whole words in random order, those too long for what is left passed
    over; a word that holds a special token is never hidden.

    `begins` is 1 at the first token of each word, one entry a token. The rule of `do_whole_word_mask` in the
    `create_pretraining_data.py` of BERT.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        return some_units(np.cumsum(begins) - 1, tokens, special, rng, most=min(most, round(rate * len(tokens))))

    return hide


def some_units(
    unit: np.ndarray, tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator, *, most: int
) -> np.ndarray:
    """bool [tokens]: whole units in random order until `most` tokens, but at least one, are hidden; those too long for
    what is left are passed over, and so are those with a special token. `unit` is the number of each token's."""
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
    """Each unit by itself, with probability `rate`, so that rows hide more or fewer; but one at least, and of more than
    `most` tokens those that were drawn first (ERNIE 1.0, the released code).

    A special token within a unit, such as that of an unknown piece, ends it; the rest of it is never hidden.
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
    """As `whole_words`, but n words at a time; how often each n comes is `lengths`, of 1, 2 ... words. Absent: as 1/n
    for up to three (ALBERT, arXiv:1909.11942, 3.1).

    The text is cut into n-grams whose lengths are drawn, and some of these are hidden: so the share of each n is what
    was asked for, which drawing places first and lengths then cannot give where n-grams meet.
    """
    share = _shares(lengths or INVERSE)

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        word = np.cumsum(begins) - 1
        words = int(word.max(initial=-1)) + 1  # none in a row that found no text
        ends = np.cumsum(rng.choice(len(share), words, p=share) + 1)
        first = np.zeros(words + 1, dtype=bool)
        first[ends[ends < words]] = True
        # No n-gram holds a special token, which stands between texts.
        apart = word[special.is_special[tokens]]
        first[apart] = first[apart + 1] = True
        unit = np.cumsum(first)
        return some_units(unit[word], tokens, special, rng, most=min(most, round(rate * len(tokens))))

    return hide


def token_ngrams(*, rate: float, most: int, lengths: Sequence[float] = ()) -> Hide:
    """As `ngrams`, of tokens, whatever words they are of."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        each = np.ones(len(tokens), dtype=np.int64)
        return ngrams(rate=rate, most=most, begins=each, lengths=lengths)(tokens, special, rng)

    return hide


def spans(*, rate: float, most: int, begins: np.ndarray, lengths: Sequence[float] = ()) -> Hide:
    """Spans of whole words that begin anywhere, until ceil(rate x ordinary tokens) are hidden; the last is cut there.
    How often each length comes is `lengths`, of 1, 2 ... words; absent: geometric, p = 0.2, up to ten (SpanBERT,
    arXiv:1907.10529, 3.1). Spans may meet and lie in each other, and are one then.
    """
    share = _shares(lengths or GEOMETRIC)

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        ordinary = ~special.is_special[tokens]
        # A word ends where the next begins, a special token is no part of any, nor is the rest of the word it is in.
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
"""What masked-lm may hide together: each token by itself, a word with all of its tokens, several of either. Called with
rate and most; one that takes `begins` is told where words begin, one that takes `lengths` how many to hide together."""


def random_tokens(*, rate: float) -> Hide:
    """Exactly `single_count` tokens, each by itself, any as likely as another.

    T5 draws for each token whether it is hidden; that it is always as many makes rows equally long.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        hidden = np.zeros(len(tokens), dtype=bool)
        count = single_count(len(tokens), rate=rate)
        hidden[rng.choice(len(tokens), count, replace=False, shuffle=False)] = True
        return hidden

    return hide


def single_count(length: int, *, rate: float) -> int:
    """How many tokens `random_tokens` hides of `length`: round(rate x tokens), at least 1 where there is any."""
    return max(round(rate * length), min(length, 1))


def one_span(*, rate: float) -> Hide:
    """As many tokens as `random_tokens` hides, one after another, beginning anywhere where they fit (MASS)."""

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        count = single_count(len(tokens), rate=rate)
        begin = int(rng.integers(len(tokens) - count + 1))
        places = np.arange(len(tokens))
        hidden: np.ndarray = (places >= begin) & (places < begin + count)
        return hidden

    return hide


def everything(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """All tokens."""
    return np.ones(len(tokens), dtype=bool)


def second_part(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """What follows the first 1, 2 ... or all tokens but one, each as likely; of one token, nothing."""
    border = int(rng.integers(1, len(tokens))) if len(tokens) > 1 else 1
    return np.arange(len(tokens)) >= border


def random_spans(*, rate: float, mean: float) -> Hide:
    """Exactly round(rate x tokens) tokens in round(that / mean) spans, no two adjacent, the first token never hidden.

    Kept and hidden lengths are random partitions into as many parts, dealt alternately (T5, arXiv:1910.10683, 3.1.4).
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
    """How many tokens `random_spans` hides of `length`, in how many spans; one token alone is not hidden."""
    if length < 2:
        return 0, 0
    noise = min(max(round(rate * length), 1), length - 1)
    # Each span stands behind a kept token.
    return noise, min(max(round(noise / mean), 1), length - noise)


def random_partition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [parts]: positive lengths that sum to `total`, every way equally likely."""
    borders = np.sort(rng.choice(total - 1, parts - 1, replace=False, shuffle=False)) + 1
    return np.diff(borders, prepend=0, append=total)

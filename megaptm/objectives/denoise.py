"""Hide, show, ask: the three functions a denoising task is made of, and the bricks for them.

The tasks to come are lines of the same kind: BART's infilling is `poisson_spans`, one mask a span and `ask` everything;
n-gram masking differs from BERT in `hide` alone, as `whole_words` does; ELECTRA's generator in `show` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from megaptm.objectives.vocabulary import SpecialTokens

Hide = Callable[[np.ndarray, SpecialTokens, np.random.Generator], np.ndarray]
Show = Callable[[np.ndarray, np.ndarray, SpecialTokens, np.random.Generator], np.ndarray]
Ask = Callable[[np.ndarray, np.ndarray, SpecialTokens], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Denoise:
    """A way to spoil a text and to ask for it back."""

    hide: Hide
    """(tokens, special, rng) -> bool [tokens]: which tokens the model must not see."""
    show: Show
    """(tokens, hidden, special, rng) -> what it sees instead."""
    ask: Ask
    """(tokens, hidden, special) -> what it must say."""

    def __call__(
        self, tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which tokens were hidden, what is shown, what is asked."""
        hidden = self.hide(tokens, special, rng)
        return hidden, self.show(tokens, hidden, special, rng), self.ask(tokens, hidden, special)


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


def whole_words(*, rate: float, most: int, begins: np.ndarray) -> Hide:
    """As many tokens as `iid` hides, or a few less: whole words in random order, those too long for what is left passed
    over; a word that holds a special token is never hidden.

    `begins` is 1 at the first token of each word, one entry a token. The rule of `do_whole_word_mask` in the
    `create_pretraining_data.py` of BERT.
    """

    def hide(tokens: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        word = np.cumsum(begins) - 1
        lengths = np.bincount(word)
        lengths[word[special.is_special[tokens]]] = len(tokens) + 1
        left = min(most, max(1, round(rate * len(tokens))))
        chosen = np.zeros(len(lengths), dtype=bool)
        order = rng.permutation(len(lengths))
        for number, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
            if length <= left:
                chosen[number] = True
                left -= length
                if not left:
                    break
        return chosen[word]

    return hide


HIDES: dict[str, Callable[..., Hide]] = {"tokens": iid, "whole-words": whole_words}
"""What masked-lm may hide together: each token by itself, a word with all of its tokens. Called with rate and most."""


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
    return noise, max(round(noise / mean), 1)


def random_partition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """int64 [parts]: positive lengths that sum to `total`, every way equally likely."""
    borders = np.sort(rng.choice(total - 1, parts - 1, replace=False, shuffle=False)) + 1
    return np.diff(borders, prepend=0, append=total)


def masked(*, mask: float, random: float) -> Show:
    """Each hidden token by itself: a mask, a random ordinary token, or (what remains) left as it is."""

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        fate = rng.random(np.count_nonzero(hidden))
        replaced = tokens[hidden]
        replaced[fate < mask] = special.mask
        drawn = (fate >= mask) & (fate < mask + random)
        replaced[drawn] = rng.choice(special.ordinary, np.count_nonzero(drawn))
        shown = tokens.copy()
        shown[hidden] = replaced
        return shown

    return show


def sentinel_per_span(
    tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Each hidden span becomes one sentinel, in the order the vocabulary lists them."""
    first = hidden & ~np.concatenate(([False], hidden[:-1]))
    shown = tokens.copy()
    shown[first] = special.sentinels[: np.count_nonzero(first)]
    return shown[first | ~hidden]


def hidden_after_sentinels(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Each hidden span after its sentinel: the shown text with hidden and kept exchanged."""
    # The text begins with a kept span, and every kept span is followed by a hidden one: the n-th sentinel is the same.
    return sentinel_per_span(tokens, ~hidden, special) if hidden.any() else tokens[:0]


def hidden_in_place(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """The hidden tokens themselves, in order; the model answers where they stood."""
    return tokens[hidden]

"""What is shown for what is hidden, and what is asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.denoise import Show
from megaptm.objectives.similar import Similar
from megaptm.objectives.vocabulary import SpecialTokens


def check_shares(mask: float, random: float) -> None:
    """Raise a `UserError` where these shares of what is hidden are more than all of it."""
    if mask + random > 1 + 1e-9:
        raise UserError(f"mask ({mask:g}) and random ({random:g}) are more than all that is hidden: lower one.")


def masked(*, mask: float, random: float) -> Show:
    """Each hidden token by itself: a mask, a random ordinary token, or (what remains) left as it is."""

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        fate = rng.random(np.count_nonzero(hidden))
        return _replaced(tokens, hidden, fate, special, rng, mask=mask, random=random)

    return show


def masked_spans(*, mask: float, random: float) -> Show:
    """As `masked`, but all hidden tokens that stand together have one fate (SpanBERT)."""

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        first = first_of_spans(hidden)
        fate = rng.random(np.count_nonzero(first))[np.cumsum(first)[hidden] - 1]
        return _replaced(tokens, hidden, fate, special, rng, mask=mask, random=random)

    return show


def _replaced(
    tokens: np.ndarray,
    hidden: np.ndarray,
    fate: np.ndarray,
    special: SpecialTokens,
    rng: np.random.Generator,
    *,
    mask: float,
    random: float,
) -> np.ndarray:
    """`fate` is a number from 0 to 1 for each hidden token."""
    replaced = tokens[hidden]
    replaced[fate < mask] = special.blank
    drawn = (fate >= mask) & (fate < mask + random)
    replaced[drawn] = rng.choice(special.ordinary, np.count_nonzero(drawn))
    shown = tokens.copy()
    shown[hidden] = replaced
    return shown


def first_of_spans(hidden: np.ndarray) -> np.ndarray:
    """bool [tokens]: the first of each run of hidden tokens."""
    return hidden & ~np.concatenate(([False], hidden[:-1]))


def similar_words(*, mask: float, random: float, begins: np.ndarray, similar: Similar) -> Show:
    """Hidden words, each by itself: one that is like it, a random one, or left as it is; never a mask (MacBERT,
    arXiv:2004.13922, 3.1). `mask` is the share of the first. A word that none is like becomes a random one.

    A word is replaced by as many tokens, so that each is asked for where it stood; of one that is hidden in part, what
    is hidden, by random tokens.
    """

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        shown = tokens.copy()
        starts = np.flatnonzero(begins)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(tokens)], strict=True):
            here = start + np.flatnonzero(hidden[start:stop])
            if not len(here):
                continue
            fate = rng.random()
            if fate >= mask + random:
                continue
            whole = len(here) == stop - start
            like = similar(tuple(tokens[start:stop].tolist())) if fate < mask and whole else None
            if like is None:
                shown[here] = rng.choice(special.ordinary, len(here))
            else:
                shown[start:stop] = like[int(rng.integers(len(like)))]
        return shown

    return show


SHOWS: dict[str, Callable[..., Show]] = {
    "tokens": masked,
    "spans": masked_spans,
    "similar-words": similar_words,
}
"""What masked-lm may show for what is hidden. Called with the shares `mask` and `random`; one that takes `begins` is
told where words begin, one that takes `similar` which words are like another."""


def sentinel_per_span(
    tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Each hidden span becomes one sentinel, in the order the vocabulary lists them."""
    first = first_of_spans(hidden)
    shown = tokens.copy()
    shown[first] = special.sentinels[: np.count_nonzero(first)]
    return shown[first | ~hidden]


def hidden_after_sentinels(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Each hidden span after the sentinel that is shown for it."""
    (begins,) = np.nonzero(first_of_spans(hidden)[hidden])
    return np.insert(tokens[hidden], begins, special.sentinels[: len(begins)])


def hidden_in_place(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """The hidden tokens themselves, in order; the model answers where they stood."""
    return tokens[hidden]


def whole(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """The text as it was."""
    return tokens


def kept(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """What is not hidden; nothing stands for the rest."""
    return tokens[~hidden]


def shuffled(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """The hidden tokens in any order, where they stood."""
    shown = tokens.copy()
    shown[hidden] = rng.permutation(tokens[hidden])
    return shown

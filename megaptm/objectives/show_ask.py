"""Replacements of masked tokens, and labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.denoise import Show
from megaptm.objectives.similar import Similar
from megaptm.objectives.vocabulary import SpecialTokens


def check_shares(mask: float, random: float) -> None:
    """Raise `UserError` if the shares of masked tokens exceed 1."""
    if mask + random > 1 + 1e-9:
        raise UserError(f"mask ({mask:g}) and random ({random:g}) are more than all that is hidden: lower one.")


def masked(*, mask: float, random: float) -> Show:
    """Replace each masked token by the mask token, a random ordinary token, or itself (the remaining share)."""

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        fate = rng.random(np.count_nonzero(hidden))
        return _replaced(tokens, hidden, fate, special, rng, mask=mask, random=random)

    return show


def masked_spans(*, mask: float, random: float) -> Show:
    """Replace as `masked` does, with one choice for each run of masked tokens (SpanBERT)."""

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
    """Replace masked tokens. `fate`: a uniform number in [0, 1) for each."""
    replaced = tokens[hidden]
    replaced[fate < mask] = special.blank
    drawn = (fate >= mask) & (fate < mask + random)
    replaced[drawn] = rng.choice(special.ordinary, np.count_nonzero(drawn))
    shown = tokens.copy()
    shown[hidden] = replaced
    return shown


def first_of_spans(hidden: np.ndarray) -> np.ndarray:
    """Return the first token of each run of masked tokens, bool [tokens]."""
    return hidden & ~np.concatenate(([False], hidden[:-1]))


def similar_words(*, mask: float, random: float, begins: np.ndarray, similar: Similar) -> Show:
    """Replace each masked word by a similar word (share `mask`), a random one (share `random`), or itself; never by
    masks (MacBERT, arXiv:2004.13922, 3.1). A word without similar words is replaced by a random one.

    Replacements have as many tokens as the word, so that labels keep their positions. A partly masked word gets random
    tokens at its masked positions.
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
"""Replacement strategies of masked-lm by name. Arguments are the shares `mask` and `random`, and, if the function has
them, `begins` (first tokens of words) and `similar` (similar words)."""


def sentinel_per_span(
    tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Replace each masked span by one sentinel, in vocabulary order."""
    first = first_of_spans(hidden)
    shown = tokens.copy()
    shown[first] = special.sentinels[: np.count_nonzero(first)]
    return shown[first | ~hidden]


def hidden_after_sentinels(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Return each masked span after its sentinel."""
    (begins,) = np.nonzero(first_of_spans(hidden)[hidden])
    return np.insert(tokens[hidden], begins, special.sentinels[: len(begins)])


def hidden_in_place(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Return the masked tokens in order, as labels at their positions."""
    return tokens[hidden]


def whole(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Return the original text."""
    return tokens


def kept(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """Return the unmasked tokens, with no replacement for the rest."""
    return tokens[~hidden]


def shuffled(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
    """Shuffle the masked tokens among their positions."""
    shown = tokens.copy()
    shown[hidden] = rng.permutation(tokens[hidden])
    return shown

"""Replacements of masked tokens, and labels for them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np

from megaptm.errors import UserError
from megaptm.families import Registry, contributions
from megaptm.objectives.denoise import Show
from megaptm.objectives.vocabulary import SpecialTokens


def check_replacement_shares(mask_token_prob: float, random_token_prob: float) -> None:
    """Raise `UserError` if the shares of masked tokens' replacements exceed 1."""
    if mask_token_prob + random_token_prob > 1 + 1e-9:
        raise UserError(
            f"mask_token_prob ({mask_token_prob:g}) and random_token_prob ({random_token_prob:g}) sum to more than 1: "
            "lower one."
        )


def replace_tokens(*, mask_token_prob: float, random_token_prob: float) -> Show:
    """Replace each masked token by the mask token, a random ordinary token, or itself (the remaining share)."""

    def show(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator) -> np.ndarray:
        uniforms = rng.random(np.count_nonzero(hidden))
        return replace_hidden(
            tokens, hidden, uniforms, special, rng, mask_token_prob=mask_token_prob, random_token_prob=random_token_prob
        )

    return show


def replace_hidden(
    tokens: np.ndarray,
    hidden: np.ndarray,
    uniforms: np.ndarray,
    special: SpecialTokens,
    rng: np.random.Generator,
    *,
    mask_token_prob: float,
    random_token_prob: float,
) -> np.ndarray:
    """Replace masked tokens. `uniforms`: a uniform number in [0, 1) for each."""
    replaced = tokens[hidden]
    replaced[uniforms < mask_token_prob] = special.mask_or_sentinel
    is_random = (uniforms >= mask_token_prob) & (uniforms < mask_token_prob + random_token_prob)
    replaced[is_random] = rng.choice(special.ordinary_ids, np.count_nonzero(is_random))
    shown = tokens.copy()
    shown[hidden] = replaced
    return shown


def span_starts(hidden: np.ndarray) -> np.ndarray:
    """Return the first token of each run of masked tokens, bool [tokens]."""
    return hidden & ~np.concatenate(([False], hidden[:-1]))


REPLACEMENT_STRATEGIES: Registry[Callable[..., Show]] = Registry(
    {"tokens": replace_tokens},
    lambda: chain.from_iterable(map(dict.items, contributions("masking", "REPLACEMENT_STRATEGIES"))),
)
"""Replacement strategies of masked-lm by name. Arguments are `mask_token_prob` and `random_token_prob`, and, if the
function has them, `unit_starts` (first tokens of words) and the option `similar`. A strategy may have a method
`check(objective, special)`."""


def replace_spans_by_sentinels(
    tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Replace each masked span of a text by one sentinel, in vocabulary order."""
    first = span_starts(hidden)
    shown = tokens.copy()
    shown[first] = special.sentinels[: np.count_nonzero(first)]
    return shown[first | ~hidden]


def masked_spans_after_sentinels(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Return each masked span of a text after its sentinel."""
    (starts,) = np.nonzero(span_starts(hidden)[hidden])
    return np.insert(tokens[hidden], starts, special.sentinels[: len(starts)])


def masked_tokens_in_order(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Return the masked tokens of a text in order, as labels at their positions."""
    return tokens[hidden]


def original_text(tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens) -> np.ndarray:
    """Return the original text as labels."""
    return tokens


def remove_masked_tokens(
    tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator
) -> np.ndarray:
    """Return the unmasked tokens of a text; nothing replaces the masked ones."""
    return tokens[~hidden]


def shuffle_tokens(
    tokens: np.ndarray, hidden: np.ndarray, special: SpecialTokens, rng: np.random.Generator
) -> np.ndarray:
    """Shuffle the masked tokens of a text among their positions."""
    shown = tokens.copy()
    shown[hidden] = rng.permutation(tokens[hidden])
    return shown

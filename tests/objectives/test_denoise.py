"""Masking functions: how many tokens they hide, which ones, and that the text can be restored."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaptm.objectives.masking import mask_random_spans, mask_single_tokens, num_masked_spans, random_partition
from megaptm.objectives.replacements import masked_spans_after_sentinels, replace_spans_by_sentinels, replace_tokens
from tests.data.corpora import SPECIALS, tiny_special

SPECIAL = tiny_special()
HIDE_SPANS = mask_random_spans(rate=0.15, mean_span_length=3.0)
seeds = st.integers(0, 2**32)
texts = st.lists(st.integers(SPECIALS, 999), min_size=2, max_size=600).map(np.array)


@given(tokens=texts, seed=seeds)
def test_spans_have_exact_counts_and_never_touch(tokens, seed):
    """The first token is never hidden."""
    hidden = HIDE_SPANS(tokens, SPECIAL, np.random.default_rng(seed))
    noise, spans = num_masked_spans(len(tokens), rate=0.15, mean_span_length=3.0)
    starts = np.flatnonzero(np.diff(hidden.astype(int)) == 1)
    assert hidden.sum() == noise == min(max(round(0.15 * len(tokens)), 1), len(tokens) - 1)
    assert not hidden[0]
    # There are as many runs of hidden tokens as spans, so no two spans are adjacent.
    assert len(starts) == spans == max(round(noise / 3), 1)


@given(tokens=texts, seed=seeds)
def test_text_is_restored_from_sentinels(tokens, seed):
    hidden = HIDE_SPANS(tokens, SPECIAL, np.random.default_rng(seed))
    shown = replace_spans_by_sentinels(tokens, hidden, SPECIAL).tolist()
    targets = masked_spans_after_sentinels(tokens, hidden, SPECIAL).tolist()
    spans: dict[int, list[int]] = {}
    for token in targets:
        if token in SPECIAL.sentinels:
            spans[token] = []
        else:
            spans[next(reversed(spans))].append(token)
    assert list(spans) == list(SPECIAL.sentinels[: len(spans)])
    rebuilt = [original for token in shown for original in spans.get(token, [token])]
    assert rebuilt == tokens.tolist()


def test_single_token_is_not_hidden():
    tokens = np.array([SPECIALS])
    hidden = HIDE_SPANS(tokens, SPECIAL, np.random.default_rng(0))
    assert not hidden.any()
    assert len(masked_spans_after_sentinels(tokens, hidden, SPECIAL)) == 0


def test_every_partition_is_equally_likely():
    rng = np.random.default_rng(0)
    partitions, counts = np.unique([random_partition(5, 3, rng) for _ in range(6000)], axis=0, return_counts=True)
    assert (partitions.sum(axis=1) == 5).all()
    assert len(partitions) == 6  # 4 choose 2
    assert counts == pytest.approx(1000, abs=120)


@given(length=st.integers(3, 512), seed=seeds)
def test_single_tokens_have_exact_count(length, seed):
    """Special tokens are never hidden."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1000, length)
    hidden = mask_single_tokens(rate=0.15, max_masked=20)(tokens, SPECIAL, rng)
    ordinary = int((tokens >= SPECIALS).sum())
    assert hidden.sum() == min(20, max(1, round(0.15 * length)), ordinary)
    assert not hidden[tokens < SPECIALS].any()


def test_replacements_are_ordinary_or_mask_tokens():
    tokens = np.full(10_000, 500)
    hidden = np.arange(10_000) % 2 == 0
    shown = replace_tokens(mask_token_prob=0.8, random_token_prob=0.1)(
        tokens, hidden, SPECIAL, np.random.default_rng(0)
    )
    assert (shown[~hidden] == 500).all()
    assert set(shown[hidden]) - {SPECIAL.mask} <= set(range(SPECIALS, 1000))
    assert (tokens == 500).all()

"""Masks of whole words: no word is hidden in part, and the rates are the published ones."""

import numpy as np
import pytest

from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.masked import max_predictions
from megaptm.objectives.masking import mask_whole_words
from megaptm.objectives.objective import SampleContext
from tests.data.corpora import SPECIALS, tiny_corpus
from tests.objectives.samples import SPECIAL, original_tokens, random_slice, with_words, word_ids

WHOLE_WORD_MLM = OBJECTIVES["masked-lm-whole-word"]
MASK, CLS, SEP = SPECIAL.mask, SPECIAL.cls, SPECIAL.sep


@pytest.mark.parametrize("document_mask", [True, False])
def test_words_are_hidden_whole_at_published_rates(document_mask):
    rng = np.random.default_rng(0)
    selected = rows = 0
    outcomes = np.zeros(3)
    while selected < 20_000:
        piece = [with_words(random_slice(300, 2 if document_mask else 1, seed=rows)), with_words(random_slice(208))]
        sample = WHOLE_WORD_MLM.make_sample(piece, SampleContext(SPECIAL, rng, 512, document_mask))
        before, is_target = original_tokens(sample)
        word = word_ids(before)
        hidden, lengths = np.bincount(word, weights=is_target), np.bincount(word)
        assert set(np.flatnonzero(hidden)) == set(np.flatnonzero(hidden == lengths)) - {0}
        assert not is_target[before < SPECIALS].any()
        after, before = sample["tokens"][is_target], before[is_target]
        masked, same = after == MASK, after == before
        outcomes += [masked.sum(), (~masked & ~same).sum(), same.sum()]
        selected += int(is_target.sum())
        rows += 1
    # 15% of 512 tokens are at most 76. A word that does not fit is skipped for a shorter one.
    assert selected / rows == pytest.approx(76, abs=0.5)
    assert outcomes / selected == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_word_length_hardly_changes_its_rate():
    starts = np.array([1, 0, 0, 1, 1, 0] * 20)
    tokens = np.full(len(starts), SPECIALS)
    hide = mask_whole_words(rate=0.15, max_masked=100, unit_starts=starts)
    rng = np.random.default_rng(0)
    hidden = np.mean([hide(tokens, SPECIAL, rng) for _ in range(4000)], axis=0)
    assert hidden.sum() == pytest.approx(18, abs=0.1)
    # A short word takes what remains of the rate.
    assert hidden.reshape(20, 6).mean(axis=0) == pytest.approx(np.full(6, 0.15), abs=0.03)


def test_word_longer_than_the_rate_is_not_hidden():
    hide = mask_whole_words(rate=0.15, max_masked=100, unit_starts=np.array([1] + [0] * 19))
    assert not hide(np.full(20, SPECIALS), SPECIAL, np.random.default_rng(0)).any()


def test_word_with_a_special_token_is_not_hidden():
    tokens = np.array([CLS, 500, 3, 501, 502, SEP])
    hide = mask_whole_words(rate=0.5, max_masked=100, unit_starts=np.array([1, 1, 0, 0, 1, 1]))
    assert hide(tokens, SPECIAL, np.random.default_rng(0)).tolist() == [False] * 4 + [True, False]


def test_words_of_a_corpus_are_hidden_whole(tmp_path):
    tiny_corpus(tmp_path / "c", documents=60, lengths=(3, 90))
    mix = open_mix(
        {str(tmp_path / "c"): 1.0}, objective="masked-lm-whole-word", sequence=40, seed=0, special=SPECIAL, window=2
    )
    num_targets = 0
    for number in range(200):
        before, is_target = original_tokens(mix.sample(number))
        word = word_ids(before)
        hidden = np.bincount(word, weights=is_target)
        assert set(hidden[hidden > 0] - np.bincount(word)[hidden > 0]) <= {0}
        num_targets += is_target.sum()
    assert num_targets / 200 == pytest.approx(max_predictions(40), abs=0.5)


def test_corpus_without_words_is_rejected(tmp_path):
    tiny_corpus(tmp_path / "c", words=False)
    with pytest.raises(
        UserError,
        match=r"was built without words, which the objective needs: build it with annotate\.words=true, or use",
    ):
        open_mix({str(tmp_path / "c"): 1.0}, objective="masked-lm-whole-word", sequence=40, seed=0, special=SPECIAL)

"""Masks of whole words: no word is broken, and the shares are the published ones (MASKSTAT)."""

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.hide import whole_words
from megaptm.objectives.masked import max_predictions
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.data.corpora import SPECIALS, tiny_corpus, word_starts
from tests.objectives.samples import SPECIAL, random_slice

WHOLE = OBJECTIVES["masked-lm-whole-word"]
MASK, CLS, SEP = SPECIAL.mask, SPECIAL.cls, SPECIAL.sep


def with_words(part: DocumentSlice) -> DocumentSlice:
    words = word_starts(part.tokens) if len(part.tokens) else np.zeros(0, dtype=int)
    return DocumentSlice(part.tokens, part.slots, annotations={"words": words})


def unmasked(sample):
    """Tokens before noise, and bool: which places are asked about."""
    tokens, asked = sample["tokens"].copy(), np.zeros(len(sample["tokens"]), dtype=bool)
    real = sample["labels"] != IGNORED
    tokens[sample["masked_positions"][real]] = sample["labels"][real]
    asked[sample["masked_positions"][real]] = True
    return tokens, asked


@pytest.mark.parametrize("document_mask", [True, False])
def test_no_word_is_broken_and_the_shares_are_the_published_ones(document_mask):
    rng = np.random.default_rng(0)
    selected = rows = 0
    fates = np.zeros(3)
    while selected < 20_000:
        piece = [with_words(random_slice(300, 2 if document_mask else 1, seed=rows)), with_words(random_slice(208))]
        sample = WHOLE.make(piece, SampleContext(SPECIAL, rng, 512, document_mask))
        before, asked = unmasked(sample)
        # A word ends before the next begins, and before a special token.
        begins = (before % 3 > 0) | (before < SPECIALS)
        begins[1:] |= (before < SPECIALS)[:-1]
        word = np.cumsum(begins)
        hidden, lengths = np.bincount(word, weights=asked), np.bincount(word)
        assert set(np.flatnonzero(hidden)) == set(np.flatnonzero(hidden == lengths)) - {0}
        assert not asked[before < SPECIALS].any()
        now, then = sample["tokens"][asked], before[asked]
        fates += [(now == MASK).sum(), ((now != MASK) & (now != then)).sum(), (now == then).sum()]
        selected += int(asked.sum())
        rows += 1
    # 15% of 512 tokens, at most 76, and a word that does not fit is left for a shorter one.
    assert selected / rows == pytest.approx(76, abs=0.5)
    assert fates / selected == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_long_words_are_hidden_nearly_as_often_as_short_ones():
    begins = np.array([1, 0, 0, 1, 1, 0] * 20)
    tokens = np.full(len(begins), SPECIALS)
    hide = whole_words(rate=0.15, max_masked=100, unit_starts=begins)
    rng = np.random.default_rng(0)
    hidden = np.mean([hide(tokens, SPECIAL, rng) for _ in range(4000)], axis=0)
    assert hidden.sum() == pytest.approx(18, abs=0.1)
    # The last of what is left is filled by a short one.
    assert hidden.reshape(20, 6).mean(axis=0) == pytest.approx(np.full(6, 0.15), abs=0.03)


def test_a_word_longer_than_all_that_may_be_hidden_stays():
    hide = whole_words(rate=0.15, max_masked=100, unit_starts=np.array([1] + [0] * 19))
    assert not hide(np.full(20, SPECIALS), SPECIAL, np.random.default_rng(0)).any()


def test_a_word_with_a_special_token_stays():
    tokens = np.array([CLS, 500, 3, 501, 502, SEP])
    hide = whole_words(rate=0.5, max_masked=100, unit_starts=np.array([1, 1, 0, 0, 1, 1]))
    assert hide(tokens, SPECIAL, np.random.default_rng(0)).tolist() == [False] * 4 + [True, False]


def test_a_row_hides_words_of_the_corpus_wherever_it_cuts_its_documents(tmp_path):
    tiny_corpus(tmp_path / "c", documents=60, lengths=(3, 90))
    mix = open_mix(
        {str(tmp_path / "c"): 1.0}, objective="masked-lm-whole-word", sequence=40, seed=0, special=SPECIAL, window=2
    )
    asked_in_all = 0
    for number in range(200):
        before, asked = unmasked(mix.sample(number))
        begins = (before % 3 > 0) | (before < SPECIALS)
        begins[1:] |= (before < SPECIALS)[:-1]
        word = np.cumsum(begins)
        hidden = np.bincount(word, weights=asked)
        assert set(hidden[hidden > 0] - np.bincount(word)[hidden > 0]) <= {0}
        asked_in_all += asked.sum()
    assert asked_in_all / 200 == pytest.approx(max_predictions(40), abs=0.5)


def test_a_corpus_without_words_is_refused(tmp_path):
    tiny_corpus(tmp_path / "c", words=False)
    with pytest.raises(
        UserError,
        match=r"was built without words, which the objective needs: build it with annotate\.words=true, or use",
    ):
        open_mix({str(tmp_path / "c"): 1.0}, objective="masked-lm-whole-word", sequence=40, seed=0, special=SPECIAL)

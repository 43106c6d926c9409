"""Rows of BERT's objectives: layout, counts, and the published statistics (MASKSTAT)."""

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.masked import max_predictions
from megaptm.objectives.objective import DocumentSlice, SampleContext, SentenceGroup
from tests.data.corpora import SPECIALS
from tests.objectives.samples import SPECIAL, random_slice, split_documents

MLM, NSP = OBJECTIVES["masked-lm"], OBJECTIVES["masked-lm-next-sentence"]
CLS, SEP, MASK = SPECIAL.cls, SPECIAL.sep, SPECIAL.mask


def unmasked(sample):
    """The row before noise."""
    tokens = sample["tokens"].copy()
    real = sample["labels"] != IGNORED
    tokens[sample["masked_positions"][real]] = sample["labels"][real]
    return sample | {"tokens": tokens}


@pytest.mark.parametrize(("sequence", "asked"), [(128, 20), (512, 76), (64, 10), (5, 1)])
def test_a_row_asks_as_many_positions_as_published(sequence, asked):
    assert max_predictions(sequence) == asked


def test_each_document_has_its_own_cls_and_sep():
    piece = [random_slice(5, 2), random_slice(0, 1), random_slice(20, 2), random_slice(33)]
    sample = MLM.make(piece, SampleContext(SPECIAL, np.random.default_rng(0), 66, True))
    assert split_documents(unmasked(sample)) == [[CLS, *p.tokens.tolist(), SEP] for p in piece if len(p.tokens)]
    assert sample["positions"].tolist()[:10] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert sample["tokens"][64:].tolist() == [SPECIAL.pad] * 2
    assert sample["document_ids"][64:].tolist() == [0, 0]


@pytest.mark.parametrize("apart", [True, False])
def test_the_first_places_of_each_document_see_all_where_that_is_asked(apart):
    task = build_objective({"masked-lm": {"global_tokens": 2}})
    sample = task.make(
        [random_slice(5, 2), random_slice(6, 1)], SampleContext(SPECIAL, np.random.default_rng(0), 18, apart)
    )
    first = [0, 1, 7, 8] if apart else [0, 1]
    assert np.flatnonzero(sample["global_tokens"]).tolist() == first
    assert {name: sample[name].shape for name in task.batch(18, apart).fields} == {
        name: field.shape for name, field in task.batch(18, apart).fields.items()
    }
    assert task.text_fields(4)["global_tokens"].tolist() == [1, 1, 0, 0]
    assert "global_tokens" not in MLM.batch(18, apart).fields


@pytest.mark.parametrize("last", [0, 1])
def test_without_document_mask_a_sep_stands_between_documents(last):
    piece = [random_slice(5, 1), random_slice(6, last)]
    sample = unmasked(MLM.make(piece, SampleContext(SPECIAL, np.random.default_rng(0), 14 + last, False)))
    a, b = (p.tokens.tolist() for p in piece)
    assert split_documents(sample) == [[CLS, *a, SEP, *b, SEP]]


def test_the_masked_share_and_the_80_10_10_split_are_the_published_ones():
    rng = np.random.default_rng(0)
    selected = maskable = 0
    fates = np.zeros(3)
    while maskable < 200_000:
        # Two documents a row, so that four specials and no padding stand among the maskable tokens.
        sample = MLM.make(
            [random_slice(300, 2, seed=maskable), random_slice(208)], SampleContext(SPECIAL, rng, 512, True)
        )
        before = unmasked(sample)["tokens"]
        real = sample["labels"] != IGNORED
        asked = sample["masked_positions"][real]
        assert (before[asked] >= SPECIALS).all()
        assert len(np.unique(asked)) == len(asked)
        assert (sample["tokens"] == before)[np.setdiff1d(np.arange(512), asked)].all()
        now = sample["tokens"][asked]
        fates += [(now == MASK).sum(), ((now != MASK) & (now != before[asked])).sum(), (now == before[asked]).sum()]
        selected += len(asked)
        maskable += int((before >= SPECIALS).sum())
    assert selected / maskable == pytest.approx(0.15, abs=0.003)
    assert fates / selected == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def chunk(*lengths: int) -> SentenceGroup:
    """Sentences of ids 200.., 210.., ...; the other document's tokens are 900."""
    sentences = [np.full(length, 200 + 10 * number) for number, length in enumerate(lengths)]
    return SentenceGroup(sentences, sample_other_document=lambda rng: [np.full(30, 900) for _ in range(10)])


def test_a_pair_is_cls_a_sep_b_sep():
    sample = unmasked(NSP.make(chunk(10, 10, 10), SampleContext(SPECIAL, np.random.default_rng(3), 64, True)))
    used = int((sample["document_ids"] == 1).sum())
    tokens, segments = sample["tokens"][:used].tolist(), sample["segments"][:used].tolist()
    first, second = tokens.index(SEP), used - 1
    assert (tokens[0], tokens[second]) == (CLS, SEP)
    assert segments == [0] * (first + 1) + [1] * (second - first)
    assert (900 in tokens[first:]) == bool(sample["next_sentence"])
    assert sample["positions"][:used].tolist() == list(range(used))
    assert (sample["tokens"][used:] == SPECIAL.pad).all()
    assert not sample["document_ids"][used:].any()


def test_next_sentence_labels_are_half_and_half_and_say_the_truth():
    rng = np.random.default_rng(0)
    samples = [unmasked(NSP.make(chunk(12, 9, 30, 20), SampleContext(SPECIAL, rng, 64, True))) for _ in range(3000)]
    labels = np.array([sample["next_sentence"] for sample in samples])
    assert labels.tolist() == [int(900 in sample["tokens"]) for sample in samples]
    # 10% draw a shorter target, and some of those keep one sentence, which forces a random second text.
    assert 0.48 < labels.mean() < 0.57


def test_a_chunk_of_one_sentence_gets_a_random_second_text():
    rng = np.random.default_rng(0)
    assert all(NSP.make(chunk(40), SampleContext(SPECIAL, rng, 64, True))["next_sentence"] == 1 for _ in range(50))


def test_a_tenth_of_the_pairs_are_shorter():
    rng = np.random.default_rng(0)
    pairs = [NSP.make(chunk(*[4] * 16), SampleContext(SPECIAL, rng, 64, True)) for _ in range(6000)]
    used = np.array([int((pair["document_ids"] == 1).sum()) for pair in pairs if not pair["next_sentence"]])
    # A short target is anything up to the row; sentences are taken until they reach it, and none is cut for it.
    assert np.mean(used < 32) == pytest.approx(0.1 * 25 / 60, abs=0.01)
    assert {*(used[used < 64] - 3) % 4} == {0}


def test_a_tokenizer_without_a_mask_is_refused():
    special = SpecialTokens(size=10, pad=0, cls=1, sep=2)
    with pytest.raises(
        UserError,
        match=r"masked-lm needs a tokenizer with a `mask` token: .*kind=wordpiece, or with tokenizer\.specials=roberta",
    ):
        MLM.check(special, 128)


def test_a_row_too_short_for_text_is_refused():
    with pytest.raises(UserError, match=r"data\.sequence \(4\) leaves room for 2 tokens of text: raise it\."):
        MLM.check(SPECIAL, 4)


def test_a_row_of_special_tokens_only_asks_nothing():
    sample = MLM.make(
        [DocumentSlice(np.array([2, 2, 2]), 2)], SampleContext(SPECIAL, np.random.default_rng(0), 8, True)
    )
    assert (sample["labels"] == IGNORED).all()

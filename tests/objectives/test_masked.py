"""Samples of BERT's objectives: layout, number of predictions, and the published rates."""

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.masked import max_predictions
from megaptm.objectives.objective import DocumentSlice, SampleContext, SentenceGroup
from tests.data.corpora import SPECIALS
from tests.objectives.samples import SPECIAL, random_slice, split_documents, unmask

MLM, NSP = OBJECTIVES["masked-lm"], OBJECTIVES["masked-lm-next-sentence"]
CLS, SEP, MASK = SPECIAL.cls, SPECIAL.sep, SPECIAL.mask


@pytest.mark.parametrize(("sequence", "num_predicted"), [(128, 20), (512, 76), (64, 10), (5, 1)])
def test_max_predictions_are_the_published_ones(sequence, num_predicted):
    assert max_predictions(sequence) == num_predicted


def test_documents_have_own_cls_and_sep():
    piece = [random_slice(5, 2), random_slice(0, 1), random_slice(20, 2), random_slice(33)]
    sample = MLM.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 66, True))
    assert split_documents(unmask(sample)) == [[CLS, *p.tokens.tolist(), SEP] for p in piece if len(p.tokens)]
    assert sample["positions"].tolist()[:10] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert sample["tokens"][64:].tolist() == [SPECIAL.pad] * 2
    assert sample["document_ids"][64:].tolist() == [0, 0]


@pytest.mark.parametrize("document_mask", [True, False])
def test_first_positions_of_documents_are_global(document_mask):
    task = build_objective({"masked-lm": {"global_tokens": 2}})
    sample = task.make_sample(
        [random_slice(5, 2), random_slice(6, 1)], SampleContext(SPECIAL, np.random.default_rng(0), 18, document_mask)
    )
    expected = [0, 1, 7, 8] if document_mask else [0, 1]
    assert np.flatnonzero(sample["global_tokens"]).tolist() == expected
    assert {name: sample[name].shape for name in task.batch_spec(18, document_mask).fields} == {
        name: field.shape for name, field in task.batch_spec(18, document_mask).fields.items()
    }
    assert task.text_fields(4)["global_tokens"].tolist() == [1, 1, 0, 0]
    assert "global_tokens" not in MLM.batch_spec(18, document_mask).fields


@pytest.mark.parametrize("end_slots", [0, 1])
def test_without_document_mask_documents_are_separated(end_slots):
    piece = [random_slice(5, 1), random_slice(6, end_slots)]
    sample = unmask(MLM.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 14 + end_slots, False)))
    a, b = (p.tokens.tolist() for p in piece)
    assert split_documents(sample) == [[CLS, *a, SEP, *b, SEP]]


def test_masking_rate_and_80_10_10_split():
    rng = np.random.default_rng(0)
    selected = maskable = 0
    outcomes = np.zeros(3)
    while maskable < 200_000:
        # Two documents per sample: four special tokens and no padding.
        sample = MLM.make_sample(
            [random_slice(300, 2, seed=maskable), random_slice(208)], SampleContext(SPECIAL, rng, 512, True)
        )
        before = unmask(sample)["tokens"]
        real = sample["labels"] != IGNORED
        targets = sample["masked_positions"][real]
        assert (before[targets] >= SPECIALS).all()
        assert len(np.unique(targets)) == len(targets)
        assert (sample["tokens"] == before)[np.setdiff1d(np.arange(512), targets)].all()
        after = sample["tokens"][targets]
        outcomes += [
            (after == MASK).sum(),
            ((after != MASK) & (after != before[targets])).sum(),
            (after == before[targets]).sum(),
        ]
        selected += len(targets)
        maskable += int((before >= SPECIALS).sum())
    assert selected / maskable == pytest.approx(0.15, abs=0.003)
    assert outcomes / selected == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def sentence_group(*lengths: int) -> SentenceGroup:
    """Sentences of ids 200, 210, ...; all tokens of the other document are 900."""
    sentences = [np.full(length, 200 + 10 * number) for number, length in enumerate(lengths)]
    return SentenceGroup(sentences, sample_other_document=lambda rng: [np.full(30, 900) for _ in range(10)])


def test_pair_is_cls_a_sep_b_sep():
    sample = unmask(
        NSP.make_sample(sentence_group(10, 10, 10), SampleContext(SPECIAL, np.random.default_rng(3), 64, True))
    )
    used = int((sample["document_ids"] == 1).sum())
    tokens, segments = sample["tokens"][:used].tolist(), sample["segments"][:used].tolist()
    first, second = tokens.index(SEP), used - 1
    assert (tokens[0], tokens[second]) == (CLS, SEP)
    assert segments == [0] * (first + 1) + [1] * (second - first)
    assert (900 in tokens[first:]) == bool(sample["next_sentence"])
    assert sample["positions"][:used].tolist() == list(range(used))
    assert (sample["tokens"][used:] == SPECIAL.pad).all()
    assert not sample["document_ids"][used:].any()


def test_next_sentence_labels_are_true_and_balanced():
    rng = np.random.default_rng(0)
    samples = [
        unmask(NSP.make_sample(sentence_group(12, 9, 30, 20), SampleContext(SPECIAL, rng, 64, True)))
        for _ in range(3000)
    ]
    labels = np.array([sample["next_sentence"] for sample in samples])
    assert labels.tolist() == [int(900 in sample["tokens"]) for sample in samples]
    # 10% are shortened; some of these keep one sentence, whose second text is always random.
    assert 0.48 < labels.mean() < 0.57


def test_single_sentence_gets_random_second_text():
    rng = np.random.default_rng(0)
    assert all(
        NSP.make_sample(sentence_group(40), SampleContext(SPECIAL, rng, 64, True))["next_sentence"] == 1
        for _ in range(50)
    )


def test_10_percent_of_pairs_are_shortened():
    rng = np.random.default_rng(0)
    pairs = [NSP.make_sample(sentence_group(*[4] * 16), SampleContext(SPECIAL, rng, 64, True)) for _ in range(6000)]
    used = np.array([int((pair["document_ids"] == 1).sum()) for pair in pairs if not pair["next_sentence"]])
    # A shortened pair takes whole sentences until it reaches a random length.
    assert np.mean(used < 32) == pytest.approx(0.1 * 25 / 60, abs=0.01)
    assert {*(used[used < 64] - 3) % 4} == {0}


def test_tokenizer_without_mask_is_rejected():
    special = SpecialTokens(size=10, pad=0, cls=1, sep=2)
    with pytest.raises(
        UserError,
        match=r"masked-lm needs a tokenizer with a `mask` token: .*kind=wordpiece, or with tokenizer\.specials=roberta",
    ):
        MLM.check(special, 128)


def test_too_short_sequence_is_rejected():
    with pytest.raises(UserError, match=r"data\.sequence \(4\) leaves room for 2 tokens of text: raise it\."):
        MLM.check(SPECIAL, 4)


def test_special_tokens_are_not_predicted():
    sample = MLM.make_sample(
        [DocumentSlice(np.array([2, 2, 2]), 2)], SampleContext(SPECIAL, np.random.default_rng(0), 8, True)
    )
    assert (sample["labels"] == IGNORED).all()

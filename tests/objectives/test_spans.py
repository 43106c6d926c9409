"""Samples of T5's span corruption."""

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import SampleContext
from tests.objectives.samples import SPECIAL, fill_sentinels, random_slice, split_documents

T5 = OBJECTIVES["span-corruption"]
PAD = SPECIAL.pad


def test_published_lengths():
    assert (T5.raw_length(512), T5.input_length(568), T5.target_length(568)) == (568, 512, 114)


@pytest.mark.parametrize("sequence", [8, 31, 64, 128, 1000])
def test_any_sequence_is_filled_exactly(sequence):
    raw = T5.raw_length(sequence)
    assert T5.input_length(raw) == sequence < T5.input_length(raw + 1)
    sample = T5.make_sample([random_slice(raw)], SampleContext(SPECIAL, np.random.default_rng(0), sequence, True))
    T5.batch_spec(sequence, document_mask=True).check(sample, maker=T5.name)
    assert sample["document_ids"].all()
    assert sample["decoder_document_ids"].all()


def test_noise_rate_and_span_length():
    rng = np.random.default_rng(0)
    hidden = spans = raw = 0
    while raw < 200_000:
        labels = T5.make_sample([random_slice(568, seed=raw)], SampleContext(SPECIAL, rng, 512, True))["labels"]
        sentinels = int(np.isin(labels, SPECIAL.sentinels).sum())
        hidden, spans, raw = hidden + len(labels) - sentinels - 1, spans + sentinels, raw + 568
    assert hidden / raw == pytest.approx(0.15, abs=0.003)
    assert hidden / spans == pytest.approx(3, abs=0.05)


def test_documents_are_corrupted_one_by_one():
    piece = [random_slice(300), random_slice(1), random_slice(150, seed=1)]
    sample = T5.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 512, True))
    inputs = split_documents(sample)
    targets = split_documents(sample, "labels", "decoder_document_ids")
    decoder_inputs = split_documents(sample, "decoder_tokens", "decoder_document_ids")
    rebuilt = [fill_sentinels(*sides) for sides in zip(inputs, targets, strict=True)]
    assert rebuilt == [p.tokens.tolist() for p in piece]
    # The decoder inputs of each document start with the start token.
    assert decoder_inputs == [[PAD, *target[:-1]] for target in targets]
    assert (sample["labels"][sample["decoder_document_ids"] == 0] == IGNORED).all()
    assert (sample["tokens"][sample["document_ids"] == 0] == PAD).all()


def test_overflow_shortens_the_last_document():
    piece = [random_slice(200), random_slice(200, seed=1), random_slice(168)]
    sample = T5.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 512, True))
    sides = zip(split_documents(sample), split_documents(sample, "labels", "decoder_document_ids"), strict=True)
    rebuilt = [fill_sentinels(*side) for side in sides]
    originals = [p.tokens.tolist() for p in piece]
    assert rebuilt[:2] == originals[:2]
    assert rebuilt[2] == originals[2][: len(rebuilt[2])]
    # One token more would overflow the inputs or the targets.
    length = len(rebuilt[2])
    assert 150 < length < 168
    assert (
        T5.target_length(length + 1) + 2 * T5.target_length(200) > 114
        or T5.input_length(length + 1) + 2 * T5.input_length(200) > 512
    )


def test_tiny_documents_never_overflow():
    piece = [random_slice(length, seed=length) for length in [1, 2, 3, 4] * 57][:568]
    sample = T5.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 512, True))
    sides = zip(split_documents(sample), split_documents(sample, "labels", "decoder_document_ids"), strict=True)
    rebuilt = [fill_sentinels(*side) for side in sides]
    assert rebuilt[:-1] == [p.tokens.tolist() for p in piece][: len(rebuilt) - 1]
    assert len(rebuilt) > 30


def test_without_document_mask_documents_are_joined():
    piece = [random_slice(300), random_slice(268)]
    sample = T5.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 512, False))
    assert set(sample["document_ids"]) == set(sample["decoder_document_ids"]) == {1}
    text = fill_sentinels(sample["tokens"].tolist(), sample["labels"].tolist())
    assert text == [token for p in piece for token in p.tokens.tolist()]


@pytest.mark.parametrize("rate", [0.8, 0.99])
def test_high_rates_are_invertible(rate):
    task = build_objective({"span-corruption": {"rate": rate}})
    for length in range(1, 40):
        sample = task.make_sample(
            [random_slice(length)], SampleContext(SPECIAL, np.random.default_rng(length), 32, True)
        )
        targets = split_documents(sample, "labels", "decoder_document_ids")
        assert fill_sentinels(split_documents(sample)[0], targets[0]) == random_slice(length).tokens.tolist()


def test_too_few_sentinels_are_rejected():
    with pytest.raises(
        UserError, match="objective span-corruption masks 111 spans in a sequence of 2000 tokens, but the tokenizer has"
    ):
        T5.check(SPECIAL, 2000)

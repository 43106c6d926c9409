"""A text and an n-gram of it: lengths and positions, no attention between the two, and the loss."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.families.bert import BERT
from megaptm.families.infoword.head_modules import TEMPERATURE
from megaptm.families.infoword.objectives import DeepInfoMax
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives.objective import SampleContext, SentenceGroup
from megaptm.spec import ModelSpec, Size, change
from tests.data.corpora import tiny_special

SEQUENCE, SPECIAL = 64, tiny_special()
TASK = DeepInfoMax()


def make_sample(
    seed: int, tokens: int = 40, task: DeepInfoMax = TASK, order: int | None = None
) -> dict[str, np.ndarray]:
    """Return a sample of a text whose tokens are all different; `order` seeds a permutation of their ids."""
    ordinary = SPECIAL.ordinary_ids if order is None else np.random.default_rng(order).permutation(SPECIAL.ordinary_ids)
    text = np.resize(ordinary, tokens)
    piece = SentenceGroup([text[: tokens // 2], text[tokens // 2 :]], sample_other_document=lambda rng: [])
    return task.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(seed), SEQUENCE, True))


def text_and_ngram(sample: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the text and of its n-gram, without their special tokens."""
    tokens, documents = sample["tokens"], sample["document_ids"]
    assert sample["ngram_start"] == np.flatnonzero(documents == 2)[0]
    text, ngram = (tokens[documents == number] for number in (1, 2))
    for tokens in (text, ngram):
        assert (tokens[0], tokens[-1]) == (SPECIAL.cls, SPECIAL.sep)
    return text[1:-1], ngram[1:-1]


def test_ngram_is_masked_in_the_text():
    original = np.resize(SPECIAL.ordinary_ids, 40)
    for seed in range(50):
        text, ngram = text_and_ngram(make_sample(seed))
        hidden = np.flatnonzero(text == SPECIAL.mask)
        assert (np.diff(hidden) == 1).all()
        assert (original[hidden] == ngram).all()
        assert (np.delete(text, hidden) == np.delete(original, hidden)).all()


def test_positions_of_text_and_ngram_start_at_zero():
    sample = make_sample(0)
    for number in (1, 2):
        positions = sample["positions"][sample["document_ids"] == number]
        assert (positions == np.arange(len(positions))).all()
    assert not sample["segments"].any()


def test_ngram_length_and_position_are_uniform():
    lengths, relative_starts = Counter(), []
    for seed in range(6000):
        text, ngram = text_and_ngram(make_sample(seed))
        lengths[len(ngram)] += 1
        relative_starts.append(np.flatnonzero(text == SPECIAL.mask)[0] / (40 - len(ngram)))
    assert [*sorted(lengths)] == [*range(5, 11)]
    assert all(count == pytest.approx(1000, abs=120) for count in lengths.values())
    assert np.mean(relative_starts) == pytest.approx(0.5, abs=0.02)
    assert np.var(relative_starts) == pytest.approx(1 / 12, abs=0.01)


def test_sample_depends_on_its_generator_only():
    sample, again, other = make_sample(3), make_sample(3), make_sample(4)
    assert all((sample[name] == again[name]).all() for name in sample)
    assert any((sample[name] != other[name]).any() for name in sample)


@pytest.mark.parametrize(("tokens", "lengths"), [(2, {1}), (4, {3}), (8, {5, 6, 7})])
def test_short_text_keeps_a_token(tokens, lengths):
    assert {len(text_and_ngram(make_sample(seed, tokens))[1]) for seed in range(30)} == lengths


def test_text_of_one_token_has_no_ngram():
    sample = make_sample(0, 1)
    assert sample["ngram_start"] == IGNORED
    assert (sample["document_ids"] == 1).sum() == 3
    assert (sample["document_ids"] == 2).sum() == 0


def test_long_text_fills_the_sequence():
    max_length = max(np.count_nonzero(make_sample(seed, 500)["document_ids"]) for seed in range(100))
    assert max_length == SEQUENCE
    task = DeepInfoMax(min_length=1, max_length=1)
    assert all(np.count_nonzero(make_sample(seed, 500, task)["document_ids"]) == SEQUENCE for seed in range(5))


def test_invalid_lengths_are_rejected():
    with pytest.raises(UserError, match=r"min_length \(11\) is more than max_length \(10\): lower it\."):
        DeepInfoMax(min_length=11)
    with pytest.raises(UserError, match=r"data.sequence \(20\) leaves 6 tokens for a text in which an n-gram of up to"):
        TASK.check(SPECIAL, 20)


@pytest.fixture(scope="module")
def model():
    family = change(BERT, heads=("mlm", "infomax"))
    size = Size(layers=2, width=32, heads=4, ffn=64)
    built = Model(ModelSpec(family=family, size=size, vocabulary=SPECIAL.size, context=SEQUENCE, dropout=0.0))
    init_weights(built, seed=3)
    return built.double().eval()


def to_batch(samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Stack samples to a batch."""
    return {name: torch.from_numpy(np.stack([row[name] for row in samples])) for name in samples[0]}


def contrastive_features(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return float [B, 2, D]: the vector of each text and of its n-gram."""
    features = []
    head = model.head["infomax"]
    with pytest.MonkeyPatch.context() as patch:
        compute_features = head.features

        def record(*streams, batch):
            features.append(compute_features(*streams, batch=batch))
            return features[0]

        patch.setattr(head, "features", record)
        model(batch)
    return features[0].unflatten(1, (2, -1)).detach()


@pytest.mark.parametrize(("changed_document", "same", "different"), [(2, 0, 1), (1, 1, 0)], ids=["ngram", "text"])
def test_text_and_ngram_do_not_attend_to_each_other(model, changed_document, same, different):
    batch = to_batch([make_sample(seed, 30 + seed) for seed in range(4)])
    before = contrastive_features(model, batch)
    inside = batch["document_ids"] == changed_document
    inside &= ~torch.isin(batch["tokens"], torch.tensor([SPECIAL.cls, SPECIAL.sep]))
    other = torch.where(inside, torch.from_numpy(SPECIAL.ordinary_ids)[batch["tokens"] % 7], batch["tokens"])
    after = contrastive_features(model, {**batch, "tokens": other})
    assert (after[:, same] - before[:, same]).abs().max() < 1e-12
    assert (after[:, different] - before[:, different]).abs().max(-1).values.min() > 1e-3


def test_loss_is_cross_entropy_over_ngrams_of_the_batch(model):
    batch = to_batch([make_sample(seed, tokens) for seed, tokens in enumerate((30, 1, 40, 12, 25))])
    loss, count = model(batch).losses["infomax"]
    texts, ngrams = contrastive_features(model, batch).unbind(1)
    with_ngram, expected = [0, 2, 3, 4], 0.0
    for index in with_ngram:
        scores = {other: float(texts[index] @ ngrams[other]) / TEMPERATURE for other in with_ngram}
        expected -= scores[index] - math.log(sum(map(math.exp, scores.values())))
    assert count == len(with_ngram)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    empty_loss, empty_count = model({name: field[1:2] for name, field in batch.items()}).losses["infomax"]
    assert empty_loss.item() == 0.0
    assert empty_count == 0


def test_model_learns_to_match_ngrams(model):
    """Train on one batch until each text matches its own n-gram."""
    learner = Model(replace(model.spec, dropout=0.0))
    init_weights(learner, seed=6)
    learner.double()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    batch = to_batch([make_sample(seed, 20 + seed, order=seed) for seed in range(8)])
    losses = []
    for _ in range(60):
        loss, count = learner(batch).losses["infomax"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(loss.item() / count)
    assert losses[0] == pytest.approx(math.log(8), abs=0.5)
    assert losses[-1] < 0.5

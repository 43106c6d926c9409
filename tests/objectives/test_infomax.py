"""A text and an n-gram of it: lengths and places (MASKSTAT), what one may know of the other (LEAK), and the loss."""

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
from megaptm.models import build_model, fill
from megaptm.models.infomax import TEMPERATURE
from megaptm.objectives.infomax import DeepInfoMax
from megaptm.objectives.objective import SampleContext, SentenceGroup
from megaptm.spec import ModelSpec, Size, change
from tests.data.corpora import tiny_special

SEQUENCE, SPECIAL = 64, tiny_special()
TASK = DeepInfoMax()


def made(seed: int, tokens: int = 40, task: DeepInfoMax = TASK, order: int | None = None) -> dict[str, np.ndarray]:
    """A sample of a text whose tokens are all different, in an order of its own where one is asked for."""
    ordinary = SPECIAL.ordinary if order is None else np.random.default_rng(order).permutation(SPECIAL.ordinary)
    text = np.resize(ordinary, tokens)
    piece = SentenceGroup([text[: tokens // 2], text[tokens // 2 :]], sample_other_document=lambda rng: [])
    return task.make(piece, SampleContext(SPECIAL, np.random.default_rng(seed), SEQUENCE, True))


def sides(sample: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the text and of its n-gram, without those around them."""
    tokens, documents = sample["tokens"], sample["document_ids"]
    assert sample["ngram_start"] == np.flatnonzero(documents == 2)[0]
    text, ngram = (tokens[documents == number] for number in (1, 2))
    for one in (text, ngram):
        assert (one[0], one[-1]) == (SPECIAL.cls, SPECIAL.sep)
    return text[1:-1], ngram[1:-1]


def test_the_ngram_stands_where_the_text_has_masks_and_nowhere_else():
    whole = np.resize(SPECIAL.ordinary, 40)
    for seed in range(50):
        text, ngram = sides(made(seed))
        hidden = np.flatnonzero(text == SPECIAL.mask)
        assert (np.diff(hidden) == 1).all()
        assert (whole[hidden] == ngram).all()
        assert (np.delete(text, hidden) == np.delete(whole, hidden)).all()


def test_both_begin_at_the_first_place():
    sample = made(0)
    for number in (1, 2):
        places = sample["positions"][sample["document_ids"] == number]
        assert (places == np.arange(len(places))).all()
    assert not sample["segments"].any()


def test_each_length_and_each_place_comes_as_often():
    lengths, firsts = Counter(), []
    for seed in range(6000):
        text, ngram = sides(made(seed))
        lengths[len(ngram)] += 1
        firsts.append(np.flatnonzero(text == SPECIAL.mask)[0] / (40 - len(ngram)))
    assert [*sorted(lengths)] == [*range(5, 11)]
    assert all(count == pytest.approx(1000, abs=120) for count in lengths.values())
    assert np.mean(firsts) == pytest.approx(0.5, abs=0.02)
    assert np.var(firsts) == pytest.approx(1 / 12, abs=0.01)


def test_a_sample_is_known_by_its_generator():
    one, two, other = made(3), made(3), made(4)
    assert all((one[name] == two[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)


@pytest.mark.parametrize(("tokens", "lengths"), [(2, {1}), (4, {3}), (8, {5, 6, 7})])
def test_a_short_text_keeps_a_token(tokens, lengths):
    assert {len(sides(made(seed, tokens))[1]) for seed in range(30)} == lengths


def test_a_text_of_one_token_is_asked_nothing():
    sample = made(0, 1)
    assert sample["ngram_start"] == IGNORED
    assert (sample["document_ids"] == 1).sum() == 3
    assert (sample["document_ids"] == 2).sum() == 0


def test_a_long_text_fills_the_row():
    longest = max(np.count_nonzero(made(seed, 500)["document_ids"]) for seed in range(100))
    assert longest == SEQUENCE
    task = DeepInfoMax(min_length=1, max_length=1)
    assert all(np.count_nonzero(made(seed, 500, task)["document_ids"]) == SEQUENCE for seed in range(5))


def test_what_cannot_be_is_refused():
    with pytest.raises(UserError, match=r"min_length \(11\) is more than max_length \(10\): lower it\."):
        DeepInfoMax(min_length=11)
    with pytest.raises(UserError, match=r"data.sequence \(20\) leaves 6 tokens for a text in which an n-gram of up to"):
        TASK.check(SPECIAL, 20)


@pytest.fixture(scope="module")
def model():
    family = change(BERT, heads=("mlm", "infomax"))
    size = Size(layers=2, width=32, heads=4, ffn=64)
    built = build_model(ModelSpec(family=family, size=size, vocabulary=SPECIAL.size, context=SEQUENCE, dropout=0.0))
    fill(built, seed=3)
    return built.double().eval()


def batch_of(rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


def features_of(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """float [B, 2, D]: a text's vector, and its n-gram's."""
    found = []
    head = model.head["infomax"]
    with pytest.MonkeyPatch.context() as patch:
        really = head.features
        patch.setattr(head, "features", lambda *streams, batch: found.append(really(*streams, batch=batch)) or found[0])
        model(batch)
    return found[0].unflatten(1, (2, -1)).detach()


def test_neither_sees_the_other(model):
    batch = batch_of([made(seed, 30 + seed) for seed in range(4)])
    before = features_of(model, batch)
    for number, kept, moved in ((2, 0, 1), (1, 1, 0)):
        inside = batch["document_ids"] == number
        inside &= ~torch.isin(batch["tokens"], torch.tensor([SPECIAL.cls, SPECIAL.sep]))
        other = torch.where(inside, torch.from_numpy(SPECIAL.ordinary)[batch["tokens"] % 7], batch["tokens"])
        after = features_of(model, {**batch, "tokens": other})
        assert (after[:, kept] - before[:, kept]).abs().max() < 1e-12
        assert (after[:, moved] - before[:, moved]).abs().max(-1).values.min() > 1e-3


def test_the_loss_is_that_of_each_text_among_all_ngrams(model):
    batch = batch_of([made(seed, tokens) for seed, tokens in enumerate((30, 1, 40, 12, 25))])
    loss, count = model(batch).losses["infomax"]
    texts, ngrams = features_of(model, batch).unbind(1)
    asked, wanted = [0, 2, 3, 4], 0.0
    for row in asked:
        scores = {other: float(texts[row] @ ngrams[other]) / TEMPERATURE for other in asked}
        wanted -= scores[row] - math.log(sum(map(math.exp, scores.values())))
    assert count == len(asked)
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    alone, one = model({name: field[1:2] for name, field in batch.items()}).losses["infomax"]
    assert (alone.item(), one) == (0.0, 0)


def test_an_ngram_that_is_the_texts_is_nearest_when_learned(model):
    """LEARN, by a few steps on the same rows: each text finds its own among those of others."""
    learner = build_model(replace(model.spec, dropout=0.0))
    fill(learner, seed=6)
    learner.double()
    optimizer = torch.optim.AdamW(learner.parameters(), lr=3e-3)
    batch = batch_of([made(seed, 20 + seed, order=seed) for seed in range(8)])
    losses = []
    for _ in range(60):
        loss, count = learner(batch).losses["infomax"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append(loss.item() / count)
    assert losses[0] == pytest.approx(math.log(8), abs=0.5)
    assert losses[-1] < 0.5

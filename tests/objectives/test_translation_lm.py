"""Masked tokens in translated pairs: layout, rates, no leak of hidden tokens, and that a model learns from the other
language."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.translation_lm import TranslationLM
from tests.data.corpora import SPECIALS
from tests.models.tiny import tiny_model, tiny_spec
from tests.objectives.samples import SPECIAL, random_slice, split_documents, unmask

TASK = OBJECTIVES["translation-lm"]
CLS, SEP = SPECIAL.cls, SPECIAL.sep


def pair(first: int, second: int, seed: int = 0) -> DocumentSlice:
    """Return a pair of random texts of `first` and `second` tokens."""
    return DocumentSlice(random_slice(first + second, seed=seed).tokens, 3, {"parts": np.array([0, first], np.int32)})


def make_sample(piece: list[DocumentSlice], sequence: int, task=TASK, seed: int = 0) -> dict[str, np.ndarray]:
    sample = task.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(seed), sequence, True))
    task.batch_spec(sequence, document_mask=True).check(sample, maker=task.name)
    return sample


def split_pair(document: DocumentSlice) -> list[list[int]]:
    """Return the two texts of a pair."""
    return [half.tolist() for half in np.split(document.tokens, document.annotations["parts"][1:])]


def test_layout_of_pairs():
    """Positions restart in the second text unless configured otherwise. Segment ids are languages."""
    piece = [pair(5, 3), pair(2, 4, seed=1)]
    sample = make_sample(piece, 32)
    texts = [split_pair(document) for document in piece]
    assert split_documents(unmask(sample)) == [[CLS, *a, SEP, *b, SEP] for a, b in texts]
    assert split_documents(sample, "positions") == [[*range(7), *range(4)], [*range(4), *range(5)]]
    assert split_documents(sample, "segments") == [[0] * 7 + [1] * 4, [0] * 4 + [1] * 5]
    assert not sample["positions"][20:].any()

    configured = build_objective({"translation-lm": {"reset_positions": False, "languages": [3, 1]}})
    sample = make_sample(piece, 32, configured)
    assert split_documents(sample, "positions") == [[*range(11)], [*range(9)]]
    assert split_documents(sample, "segments") == [[3] * 7 + [1] * 4, [3] * 4 + [1] * 5]
    assert configured.num_segments == 4


def test_pairs_that_do_not_fit_are_truncated_or_skipped():
    long, skipped, short = pair(50, 8), pair(9, 9, seed=1), pair(2, 2, seed=2)
    sample = unmask(make_sample([long, skipped, short], 32))
    first, second = split_pair(long)
    assert split_documents(sample) == [[CLS, *first[:21], SEP, *second, SEP]]
    one_sided = DocumentSlice(random_slice(7).tokens, 3, {"parts": np.array([0], np.int32)})
    assert len(split_documents(make_sample([one_sided, skipped, short], 32))) == 2
    empty = make_sample([], 32)
    assert (empty["labels"] == IGNORED).all()
    assert not empty["document_ids"].any()


def test_masking_rate_is_equal_in_both_texts():
    rng = np.random.default_rng(0)
    sides, targets_per_side, outcomes = np.zeros(2), np.zeros(2), np.zeros(3)
    seed = num_positions = 0
    while sides.sum() < 200_000:
        piece = [pair(*rng.integers(30, 90, 2), seed=seed + number) for number in range(4)]
        seed += 4
        sample = make_sample(piece, 512, seed=seed)
        before = unmask(sample)["tokens"]
        real = sample["labels"] != IGNORED
        targets = sample["masked_positions"][real]
        assert (before[targets] >= SPECIALS).all()
        assert len(np.unique(targets)) == len(targets)
        assert (sample["tokens"] == before)[np.setdiff1d(np.arange(512), targets)].all()
        ordinary = before >= SPECIALS
        num_positions += np.count_nonzero(sample["document_ids"])
        sides += [np.count_nonzero(ordinary & (sample["segments"] == side)) for side in (0, 1)]
        targets_per_side += np.bincount(sample["segments"][targets], minlength=2)
        shown = sample["tokens"][targets]
        masked, same = shown == SPECIAL.mask, shown == before[targets]
        outcomes += [masked.sum(), (~masked & ~same).sum(), same.sum()]
    # The rate counts `cls` and `sep`, as the released code of BERT does. It is equal in both texts.
    assert targets_per_side.sum() / num_positions == pytest.approx(0.15, abs=0.003)
    assert targets_per_side / sides == pytest.approx([targets_per_side.sum() / sides.sum()] * 2, abs=0.003)
    assert outcomes / outcomes.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_whole_words_end_at_the_border_of_two_texts():
    task = build_objective(
        {"translation-lm": {"hide": "whole-words", "rate": 0.4, "mask_token_prob": 1.0, "random_token_prob": 0.0}}
    )
    assert task.annotations == ("words", "parts")
    document = pair(9, 9)
    # No word is annotated at the border, but a text starts there.
    annotations = {**document.annotations, "words": np.array([0, 3, 6, 11, 14], np.int32)}
    words = [{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {11, 12}, {13, 14, 15}, {16, 17, 18, 19}]
    hidden_words = set()
    for seed in range(60):
        sample = make_sample([replace(document, annotations=annotations)], 24, task, seed)
        hidden = set(np.flatnonzero(sample["tokens"] == SPECIAL.mask).tolist())
        masked = [word for word in words if word & hidden]
        assert hidden == set().union(*masked)
        hidden_words |= {min(word) for word in masked}
    assert hidden_words == {min(word) for word in words}


def test_inputs_do_not_depend_on_hidden_tokens():
    task = build_objective({"translation-lm": {"mask_token_prob": 1.0, "random_token_prob": 0.0}})
    document = pair(20, 20)
    sample = make_sample([document], 64, task)
    position = int(sample["masked_positions"][0])
    changed = document.tokens.copy()
    index = position - 1 - (position > 21)  # after `cls`, and after `sep` in the second text
    changed[index] = SPECIALS + (int(changed[index]) - SPECIALS + 1) % 800
    again = make_sample([replace(document, tokens=changed)], 64, task)
    assert sample["labels"][0] != again["labels"][0]
    assert all((sample[name] == again[name]).all() for name in sample if name != "labels")


def test_attention_stays_within_a_pair():
    model = tiny_model("bert")
    ids = np.arange(8, 30)
    piece = [
        DocumentSlice(ids[:8], 3, {"parts": np.array([0, 4], np.int32)}),
        DocumentSlice(ids[8:18], 3, {"parts": np.array([0, 5], np.int32)}),
    ]
    sample = make_sample(piece, 24)

    def mlm_logits(tokens: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            batch = {**sample, "tokens": tokens}
            return model.logits({name: torch.from_numpy(field)[None] for name, field in batch.items()})["mlm"][0]

    changed = sample["tokens"].copy()
    changed[7] = 50  # second text of the first pair
    change = (mlm_logits(sample["tokens"]) - mlm_logits(changed)).abs().amax(-1)
    assert (change[:11] > 1e-6).all()
    assert change[11:].max() <= 1e-6


def test_mixture_with_masked_lm():
    mixture = build_objective(
        {
            "texts": {"task": "masked-lm", "share": 3, "corpora": ["a"]},
            "pairs": {"task": "translation-lm", "share": 1, "corpora": ["b"]},
        }
    )
    assert mixture.losses == {"mlm": 1.0}
    assert mixture.num_segments == 2
    assert mixture.resets_positions
    assert mixture.batch_spec(64, True) == TASK.batch_spec(64, True)


def test_invalid_options_are_rejected():
    with pytest.raises(UserError, match=r"objective\.translation-lm\.reset_positions must be .*, not 'anew'"):
        build_objective({"translation-lm": {"reset_positions": "anew"}})
    with pytest.raises(UserError, match=r"objective\.translation-lm\.languages\.1 must be at least 0, not -1\."):
        build_objective({"translation-lm": {"languages": [0, -1]}})


SMALL = SpecialTokens(size=101, pad=0, cls=1, sep=2, mask=3, specials=frozenset(range(4)))
NUM_WORDS = 8


def word_pairs(rng: np.random.Generator, *, translated: bool = True) -> list[DocumentSlice]:
    """Return pairs of two random words and their translations, or random words instead of translations."""
    pairs = []
    for _ in range(6):
        words = rng.integers(0, NUM_WORDS, 2)
        translations = words if translated else rng.integers(0, NUM_WORDS, 2)
        tokens = np.concatenate((4 + words, 4 + NUM_WORDS + (translations * 5 + 3) % NUM_WORDS))
        pairs.append(DocumentSlice(tokens, 3, {"parts": np.array([0, 2], np.int32)}))
    return pairs


def make_batch(rng: np.random.Generator, **options: bool) -> dict[str, torch.Tensor]:
    task = TranslationLM(rate=0.2, mask_token_prob=0.9, random_token_prob=0.05)
    samples = [task.make_sample(word_pairs(rng, **options), SampleContext(SMALL, rng, 42, True)) for _ in range(24)]
    return {name: torch.from_numpy(np.stack([row[name] for row in samples])) for name in samples[0]}


@pytest.mark.usefixtures("one_thread")
def test_model_learns_from_the_translation():
    model = Model(tiny_spec("bert"))
    init_weights(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters())
    rng = np.random.default_rng(1)
    for step in range(1, 241):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, step / 30)
        loss, count = model(make_batch(rng)).losses["mlm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    model.eval()

    def validation_loss(**options: bool) -> float:
        with torch.no_grad():
            loss, count = model(make_batch(np.random.default_rng(9), **options)).losses["mlm"]
        return float(loss / count)

    # All words are equally likely, so that a model without the translation has a loss of log(NUM_WORDS).
    assert validation_loss() < np.log(NUM_WORDS) / 2
    assert validation_loss(translated=False) > np.log(NUM_WORDS)


def test_defaults_are_those_of_the_paper():
    assert TranslationLM() == OBJECTIVES["translation-lm"]
    assert TASK.hide == "tokens"
    assert TASK.rate == 0.15
    assert TASK.mask_token_prob == 0.8
    assert TASK.random_token_prob == 0.1

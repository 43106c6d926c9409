"""Masked tokens in pairs: layout, counts, statistics (MASKSTAT), what is hidden stays hidden (LEAK), and that a model
guesses the one from the other (LEARN)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.models import build_model, fill
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.translation_lm import TranslationLM
from tests.data.corpora import SPECIALS
from tests.models.tiny import tiny_model, tiny_spec
from tests.objectives.samples import SPECIAL, random_slice, split_documents
from tests.objectives.test_masked import unmasked

TASK = OBJECTIVES["translation-lm"]
CLS, SEP = SPECIAL.cls, SPECIAL.sep


def pair(first: int, second: int, seed: int = 0) -> DocumentSlice:
    return DocumentSlice(random_slice(first + second, seed=seed).tokens, 3, {"parts": np.array([0, first], np.int32)})


def made(piece: list[DocumentSlice], sequence: int, task=TASK, seed: int = 0) -> dict[str, np.ndarray]:
    sample = task.make(piece, SampleContext(SPECIAL, np.random.default_rng(seed), sequence, True))
    task.batch(sequence, document_mask=True).check(sample, maker=task.name)
    return sample


def halves(document: DocumentSlice) -> list[list[int]]:
    return [half.tolist() for half in np.split(document.tokens, document.annotations["parts"][1:])]


def test_places_begin_anew_in_the_second_text_and_segments_are_languages():
    piece = [pair(5, 3), pair(2, 4, seed=1)]
    sample = made(piece, 32)
    texts = [halves(document) for document in piece]
    assert split_documents(unmasked(sample)) == [[CLS, *a, SEP, *b, SEP] for a, b in texts]
    assert split_documents(sample, "positions") == [[*range(7), *range(4)], [*range(4), *range(5)]]
    assert split_documents(sample, "segments") == [[0] * 7 + [1] * 4, [0] * 4 + [1] * 5]
    assert not sample["positions"][20:].any()

    other = build_objective({"translation-lm": {"reset_positions": False, "languages": [3, 1]}})
    sample = made(piece, 32, other)
    assert split_documents(sample, "positions") == [[*range(11)], [*range(9)]]
    assert split_documents(sample, "segments") == [[3] * 7 + [1] * 4, [3] * 4 + [1] * 5]
    assert other.num_segments == 4


def test_the_longer_text_of_a_pair_is_cut_and_what_finds_no_room_is_left_out():
    long, none, short = pair(50, 8), pair(9, 9, seed=1), pair(2, 2, seed=2)
    sample = unmasked(made([long, none, short], 32))
    (a, b), _ = halves(long), None
    assert split_documents(sample) == [[CLS, *a[:21], SEP, *b, SEP]]
    lone = DocumentSlice(random_slice(7).tokens, 3, {"parts": np.array([0], np.int32)})
    assert len(split_documents(made([lone, none, short], 32))) == 2
    empty = made([], 32)
    assert (empty["labels"] == IGNORED).all()
    assert not empty["document_ids"].any()


def test_the_published_share_is_hidden_on_both_sides():
    rng = np.random.default_rng(0)
    sides, asked_of, fates = np.zeros(2), np.zeros(2), np.zeros(3)
    seed = places = 0
    while sides.sum() < 200_000:
        piece = [pair(*rng.integers(30, 90, 2), seed=seed + number) for number in range(4)]
        seed += 4
        sample = made(piece, 512, seed=seed)
        before = unmasked(sample)["tokens"]
        real = sample["labels"] != IGNORED
        asked = sample["masked_positions"][real]
        assert (before[asked] >= SPECIALS).all()
        assert len(np.unique(asked)) == len(asked)
        assert (sample["tokens"] == before)[np.setdiff1d(np.arange(512), asked)].all()
        ordinary = before >= SPECIALS
        places += np.count_nonzero(sample["document_ids"])
        sides += [np.count_nonzero(ordinary & (sample["segments"] == side)) for side in (0, 1)]
        asked_of += np.bincount(sample["segments"][asked], minlength=2)
        shown = sample["tokens"][asked]
        masked, kept = shown == SPECIAL.mask, shown == before[asked]
        fates += [masked.sum(), (~masked & ~kept).sum(), kept.sum()]
    # Of all places, as in the released code of BERT, which counts `cls` and `sep`; of both languages alike.
    assert asked_of.sum() / places == pytest.approx(0.15, abs=0.003)
    assert asked_of / sides == pytest.approx([asked_of.sum() / sides.sum()] * 2, abs=0.003)
    assert fates / fates.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_words_are_hidden_whole_and_never_across_the_border_of_two_texts():
    task = build_objective(
        {"translation-lm": {"hide": "whole-words", "rate": 0.4, "mask_token_prob": 1.0, "random_token_prob": 0.0}}
    )
    assert task.annotations == ("words", "parts")
    document = pair(9, 9)
    # No word begins at the border: a text does.
    known = {**document.annotations, "words": np.array([0, 3, 6, 11, 14], np.int32)}
    words = [{1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {11, 12}, {13, 14, 15}, {16, 17, 18, 19}]
    seen = set()
    for seed in range(60):
        sample = made([replace(document, annotations=known)], 24, task, seed)
        hidden = set(np.flatnonzero(sample["tokens"] == SPECIAL.mask).tolist())
        whole = [word for word in words if word & hidden]
        assert hidden == set().union(*whole)
        seen |= {min(word) for word in whole}
    assert seen == {min(word) for word in words}


def test_what_a_model_reads_says_nothing_of_what_is_hidden():
    task = build_objective({"translation-lm": {"mask_token_prob": 1.0, "random_token_prob": 0.0}})
    document = pair(20, 20)
    sample = made([document], 64, task)
    place = int(sample["masked_positions"][0])
    changed = document.tokens.copy()
    at = place - 1 - (place > 21)  # behind a `cls`, and a `sep` where it is of the second text
    changed[at] = SPECIALS + (int(changed[at]) - SPECIALS + 1) % 800
    again = made([replace(document, tokens=changed)], 64, task)
    assert sample["labels"][0] != again["labels"][0]
    assert all((sample[name] == again[name]).all() for name in sample if name != "labels")


def test_a_pair_sees_its_own_texts_and_no_other_pair():
    model = tiny_model("bert")
    ids = np.arange(8, 30)
    piece = [
        DocumentSlice(ids[:8], 3, {"parts": np.array([0, 4], np.int32)}),
        DocumentSlice(ids[8:18], 3, {"parts": np.array([0, 5], np.int32)}),
    ]
    sample = made(piece, 24)

    def said(tokens: np.ndarray) -> torch.Tensor:
        with torch.no_grad():
            batch = {**sample, "tokens": tokens}
            return model.logits({name: torch.from_numpy(field)[None] for name, field in batch.items()})["mlm"][0]

    moved = sample["tokens"].copy()
    moved[7] = 50  # of the first pair's second text
    change = (said(sample["tokens"]) - said(moved)).abs().amax(-1)
    assert (change[:11] > 1e-6).all()
    assert change[11:].max() <= 1e-6


def test_it_is_one_task_beside_others_and_refused_where_it_cannot_be():
    both = build_objective(
        {
            "texts": {"task": "masked-lm", "share": 3, "corpora": ["a"]},
            "pairs": {"task": "translation-lm", "share": 1, "corpora": ["b"]},
        }
    )
    assert (both.losses, both.num_segments, both.resets_positions) == ({"mlm": 1.0}, 2, True)
    assert both.batch(64, True) == TASK.batch(64, True)
    with pytest.raises(UserError, match=r"objective\.translation-lm\.reset_positions must be .*, not 'anew'"):
        build_objective({"translation-lm": {"reset_positions": "anew"}})
    with pytest.raises(UserError, match=r"objective\.translation-lm\.languages\.1 must be at least 0, not -1\."):
        build_objective({"translation-lm": {"languages": [0, -1]}})


SMALL = SpecialTokens(size=101, pad=0, cls=1, sep=2, mask=3, specials=frozenset(range(4)))
WORDS = 8


def pairs_of_words(rng: np.random.Generator, *, translated: bool = True) -> list[DocumentSlice]:
    """Two random words, and each in another language; or words that have nothing to do with them."""
    found = []
    for _ in range(6):
        words = rng.integers(0, WORDS, 2)
        others = words if translated else rng.integers(0, WORDS, 2)
        tokens = np.concatenate((4 + words, 4 + WORDS + (others * 5 + 3) % WORDS))
        found.append(DocumentSlice(tokens, 3, {"parts": np.array([0, 2], np.int32)}))
    return found


def batch(rng: np.random.Generator, **options: bool) -> dict[str, torch.Tensor]:
    task = TranslationLM(rate=0.2, mask_token_prob=0.9, random_token_prob=0.05)
    rows = [task.make(pairs_of_words(rng, **options), SampleContext(SMALL, rng, 42, True)) for _ in range(24)]
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


@pytest.mark.usefixtures("one_thread")
def test_a_text_is_guessed_from_its_translation():
    model = build_model(tiny_spec("bert"))
    fill(model, seed=1)
    optimizer = torch.optim.Adam(model.parameters())
    rng = np.random.default_rng(1)
    for step in range(1, 241):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1, step / 30)
        loss, count = model(batch(rng)).losses["mlm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
    model.eval()

    def held_out(**options: bool) -> float:
        with torch.no_grad():
            loss, count = model(batch(np.random.default_rng(9), **options)).losses["mlm"]
        return float(loss / count)

    # All words are as likely: who knows no more than the language has this loss.
    assert held_out() < np.log(WORDS) / 2
    assert held_out(translated=False) > np.log(WORDS)


def test_its_defaults_are_the_papers():
    assert TranslationLM() == OBJECTIVES["translation-lm"]
    assert (TASK.name, TASK.hide, TASK.rate, TASK.mask_token_prob, TASK.random_token_prob) == (
        "translation-lm",
        "tokens",
        0.15,
        0.8,
        0.1,
    )

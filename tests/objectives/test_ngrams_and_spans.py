"""Masks of several words, of spans with one fate, of similar words: their shares are the published ones (MASKSTAT)."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.objectives import build_objective
from megaptm.objectives.hide import GEOMETRIC_WEIGHTS, MASKING_STRATEGIES
from megaptm.objectives.masked import MaskedLM
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.show_ask import first_of_spans
from megaptm.objectives.similar import SimilarWords, load_similar_words, write_similar
from tests.data.corpora import SPECIALS, tiny_corpus
from tests.objectives.samples import SPECIAL, random_slice
from tests.objectives.test_whole_words import unmasked, with_words

MASK, CLS, SEP = SPECIAL.mask, SPECIAL.cls, SPECIAL.sep
MAC = {"masked-lm": {"hide": "ngrams", "length_weights": [0.4, 0.3, 0.2, 0.1], "show": "similar-words"}}
ALIKE = f"{__name__}:alike"


def alike(word: tuple[int, ...]) -> np.ndarray | None:
    """Words of even ids have one that is like them: all ids one more."""
    return None if word[0] % 2 else np.array([word]) + 1


def run_lengths(hidden: np.ndarray) -> list[int]:
    first = first_of_spans(hidden)
    return np.bincount(np.cumsum(first)[hidden])[1:].tolist()


@pytest.mark.parametrize(
    ("hide", "length_weights", "shares"),
    [
        ("ngrams", (), [6 / 11, 3 / 11, 2 / 11]),
        ("ngrams", (0.4, 0.3, 0.2, 0.1), [0.4, 0.3, 0.2, 0.1]),
        ("token-ngrams", (0.8, 0.1, 0.1), [0.8, 0.1, 0.1]),
        ("spans", (), np.array(GEOMETRIC_WEIGHTS) / sum(GEOMETRIC_WEIGHTS)),
    ],
)
def test_as_many_words_come_together_as_often_as_was_said(hide, length_weights, shares):
    # So few of so many words of one token that hidden ones seldom meet, and few are cut where the share is reached.
    tokens, options = np.full(100_000, SPECIALS), {"length_weights": length_weights} if length_weights else {}
    words = {} if hide == "token-ngrams" else {"unit_starts": np.ones(len(tokens), dtype=int)}
    make = MASKING_STRATEGIES[hide](rate=0.004, max_masked=10_000, **words, **options)
    rng = np.random.default_rng(0)
    found = [length for _ in range(40) for length in run_lengths(make(tokens, SPECIAL, rng))]
    histogram = np.bincount(found, minlength=len(shares) + 1)[1 : len(shares) + 1] / len(found)
    assert histogram == pytest.approx(shares, abs=0.025)


@pytest.mark.parametrize("hide", ["ngrams", "spans"])
def test_no_word_is_broken_and_no_special_token_hidden(hide):
    task, rng, selected, rows = MaskedLM(hide=hide), np.random.default_rng(0), 0, 0
    broken = 0
    while selected < 15_000:
        piece = [with_words(random_slice(300, 2, seed=rows)), with_words(random_slice(208))]
        before, asked = unmasked(task.make(piece, SampleContext(SPECIAL, rng, 512, True)))
        begins = (before % 3 > 0) | (before < SPECIALS)
        begins[1:] |= (before < SPECIALS)[:-1]
        word = np.cumsum(begins)
        hidden, lengths = np.bincount(word, weights=asked), np.bincount(word)
        broken += np.count_nonzero((hidden > 0) & (hidden < lengths))
        assert not asked[before < SPECIALS].any()
        selected, rows = selected + int(asked.sum()), rows + 1
    # Only the last span of a row may be cut.
    assert broken <= (rows if hide == "spans" else 0)
    assert selected / rows == pytest.approx(76, abs=0.5)


def test_what_follows_an_unknown_piece_within_a_word_is_not_hidden_nor_waited_for():
    # A long word that begins with a piece that the tokenizer does not know: of the 40 tokens 8 can be hidden.
    tokens = np.array([SPECIAL.cls, *range(SPECIALS, SPECIALS + 8), SPECIAL.pad, *range(SPECIALS + 8, SPECIALS + 40)])
    begins = np.concatenate((np.ones(10, dtype=int), np.zeros(32, dtype=int)))
    hide = MASKING_STRATEGIES["spans"](rate=0.5, max_masked=30, unit_starts=begins)
    assert np.flatnonzero(hide(tokens, SPECIAL, np.random.default_rng(0))).tolist() == [*range(1, 9)]
    none = MASKING_STRATEGIES["spans"](rate=0.5, max_masked=30, unit_starts=begins[9:])
    assert not none(tokens[9:], SPECIAL, np.random.default_rng(0)).any()


@pytest.mark.parametrize("hide", sorted(MASKING_STRATEGIES))
def test_of_a_row_without_text_nothing_is_hidden(hide):
    task = build_objective({"translation-lm": {"hide": hide}})
    alone = random_slice(4, 3)  # of a pair whose other text has no token
    alone.annotations.update(parts=np.zeros(1, np.int32), words=np.zeros(1, np.int32))
    sample = task.make([alone], SampleContext(SPECIAL, np.random.default_rng(0), 32, True))
    task.batch(32, True).check(sample, maker=task.name)
    assert (sample["labels"] == IGNORED).all()


def test_the_tokens_of_a_span_have_one_fate():
    task, rng = MaskedLM(hide="spans", show="spans"), np.random.default_rng(0)
    fates = np.zeros(3)
    for number in range(400):
        sample = task.make([with_words(random_slice(510, 1, seed=number))], SampleContext(SPECIAL, rng, 512, False))
        before, asked = unmasked(sample)
        now = sample["tokens"]
        for span in np.split(np.flatnonzero(asked), np.flatnonzero(np.diff(np.flatnonzero(asked)) > 1) + 1):
            masked, kept = now[span] == MASK, now[span] == before[span]
            assert masked.all() or not masked.any()
            assert masked.any() or kept.all() or kept.mean() <= 0.5  # a random token may be the one that was there
            fates += [masked.all(), not masked.any() and not kept.all(), kept.all()]
    assert fates / fates.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.015)


def test_similar_words_stand_where_words_stood_and_no_mask_is_shown():
    task = build_objective({"masked-lm": {**MAC["masked-lm"], "similar": ALIKE}})
    assert isinstance(task, MaskedLM)
    rng, fates = np.random.default_rng(0), np.zeros((2, 3))
    for number in range(800):
        sample = task.make([with_words(random_slice(510, 1, seed=number))], SampleContext(SPECIAL, rng, 512, False))
        before, asked = unmasked(sample)
        now = sample["tokens"]
        assert MASK not in now
        assert (now[~asked] == before[~asked]).all()
        places = np.flatnonzero(asked)
        for word in np.split(places, np.flatnonzero((np.diff(places) > 1) | (before[places[1:]] % 3 > 0)) + 1):
            similar, kept = (now[word] == before[word] + 1).all(), (now[word] == before[word]).all()
            fates[before[word[0]] % 2] += [similar, not similar and not kept, kept]
    even, odd = fates / fates.sum(axis=1, keepdims=True)
    assert even == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert odd == pytest.approx([0.0, 0.9, 0.1], abs=0.01)


@pytest.mark.parametrize("hide", ["tokens", "spans", "token-ngrams"])
def test_of_a_word_that_is_hidden_in_part_the_rest_stays(hide):
    task = build_objective({"masked-lm": {"hide": hide, "show": "similar-words", "similar": ALIKE}})
    changed = 0.0
    for number in range(40):
        rng = np.random.default_rng(number)
        sample = task.make([with_words(random_slice(126, 1, seed=number))], SampleContext(SPECIAL, rng, 128, False))
        before, asked = unmasked(sample)
        assert (sample["tokens"][~asked] == before[~asked]).all()
        changed += (sample["tokens"][asked] != before[asked]).mean() / 40
    assert changed == pytest.approx(0.9, abs=0.05)


def test_pairs_hide_words_of_the_corpus(tmp_path):
    tiny_corpus(tmp_path / "c", documents=60, lengths=(30, 120))
    for objective in ("masked-lm-whole-word-next-sentence", "masked-lm-ngrams-sentence-order"):
        mix, again = (
            open_mix({str(tmp_path / "c"): 1.0}, objective=objective, sequence=48, seed=0, special=SPECIAL, window=2)
            for _ in range(2)
        )
        asked_in_all = 0
        for number in range(150):
            sample = mix.sample(number)
            assert all((sample[name] == value).all() for name, value in again.sample(number).items())
            before, asked = unmasked(sample)
            begins = (before % 3 > 0) | (before < SPECIALS)
            begins[1:] |= (before < SPECIALS)[:-1]
            word = np.cumsum(begins)
            hidden = np.bincount(word, weights=asked)
            assert set(hidden[hidden > 0] - np.bincount(word)[hidden > 0]) <= {0}
            assert not asked[before < SPECIALS].any()
            asked_in_all += int(asked.sum())
        assert asked_in_all > 600


def test_a_corpus_without_words_makes_no_pairs_of_them(tmp_path):
    tiny_corpus(tmp_path / "c", words=False)
    with pytest.raises(
        UserError,
        match=r"was built without words, which the objective needs: build it with annotate\.words=true, or use",
    ):
        open_mix(
            {str(tmp_path / "c"): 1.0},
            objective="masked-lm-whole-word-next-sentence",
            sequence=40,
            seed=0,
            special=SPECIAL,
        )


def test_a_span_beside_an_unknown_piece_has_a_border():
    task, rng = build_objective("masked-lm-span-boundary"), np.random.default_rng(0)
    text = np.arange(SPECIALS, SPECIALS + 60)
    text[1::2] = SPECIALS - 1  # so that each span has one beside it
    words = np.arange(60)
    sample = task.make([DocumentSlice(text, 1, {"words": words})], SampleContext(SPECIAL, rng, 62, False))
    asked, within = sample["labels"] != IGNORED, sample["masked_positions"] > 1
    assert (sample["span_labels"][asked & within] == sample["labels"][asked & within]).all()


def test_borders_of_spans_are_shown_and_never_their_own_tokens():
    task, rng = build_objective("masked-lm-span-boundary"), np.random.default_rng(0)
    asked_about = 0
    for number in range(50):
        sample = task.make(
            [with_words(random_slice(300, 2, seed=number)), with_words(random_slice(206))],
            SampleContext(SPECIAL, rng, 512, True),
        )
        task.batch(512, True).check(sample, maker=task.name)
        before, asked = unmasked(sample)
        real = sample["span_labels"] != IGNORED
        left, right, offset = (sample[f"span_{name}"][real] for name in ("left", "right", "offset"))
        assert not asked[left].any()
        assert not asked[right].any()
        assert (before[left] >= SPECIALS).all()
        assert (before[right] >= SPECIALS).all()
        assert (sample["span_labels"][real] == before[left + 1 + offset]).all()
        assert (sample["document_ids"][left] == sample["document_ids"][right]).all()
        asked_about += real.sum()
    assert asked_about / 50 > 60


def test_a_table_of_similar_words_is_a_file(tmp_path):
    write_similar({(7,): [(8,), (9,)], (7, 8): [(1, 2)], (5,): [(6,)]}, tmp_path / "similar.npz")
    found = load_similar_words(str(tmp_path / "similar.npz"))
    assert isinstance(found, SimilarWords)
    assert (len(found), found.max_id) == (3, 9)
    assert found((7,)).tolist() == [[8], [9]]
    assert found((5,)).tolist() == [[6]]
    assert found((7, 8)).tolist() == [[1, 2]]
    assert found((8,)) is None


def test_what_cannot_be_similar_is_said(tmp_path, monkeypatch):
    mac = build_objective(MAC)
    told = "objective masked-lm-ngrams-similar-words replaces words by similar ones and has none: set the"
    with pytest.raises(UserError, match=told):
        mac.check(SPECIAL, 64)
    (tmp_path / "bad.npz").write_text("no table")
    write_similar({(7,): [(5000,)]}, tmp_path / "other.npz")
    monkeypatch.setattr("megaptm.objectives.similar.MAX_BYTES", 1 << 20)
    word = np.array([[7]])
    for name, words, similar in (
        ("flat", word[0], word),
        ("longer", word, np.array([[[8, 9]]])),
        ("below", np.array([[7, 8]]), np.array([[[9, -1]]])),
        ("bomb", np.zeros((1 << 18, 1)), word),
    ):
        np.savez_compressed(tmp_path / f"{name}.npz", **{"words-1": words, "similar-1": similar})
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        # They unpack to whatever is there, whatever the archive says of its size.
        with (
            zipfile.ZipFile(tmp_path / "other.npz") as whole,
            zipfile.ZipFile(tmp_path / f"{kind}.npz", "w", kind) as packed,
        ):
            for member in whole.infolist():
                packed.writestr(member.filename, whole.read(member), kind)
    for name, said in (
        (f"{zipfile.ZIP_BZIP2}.npz", "a compression type that numpy does not use"),
        (f"{zipfile.ZIP_LZMA}.npz", "a compression type that numpy does not use"),
        ("bad.npz", "is not a table of similar words"),
        ("none.npz", r"is not a table of similar words \(no such file\)"),
        ("flat.npz", "its arrays are not tables of ids"),
        ("longer.npz", r"words of 1 tokens have similar words of shape \(1, 1, 2\)"),
        ("below.npz", "it has negative ids"),
        ("bomb.npz", r"it unpacks to \d,\d+,\d+ bytes"),
        ("other.npz", "has ids up to 5000, but the tokenizer has 1000 ids"),
    ):
        task = build_objective({"masked-lm": {**MAC["masked-lm"], "similar": str(tmp_path / name)}})
        with pytest.raises(UserError, match=said):
            task.check(SPECIAL, 64)

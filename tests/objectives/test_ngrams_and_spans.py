"""Masks of n-grams, spans and similar words, with the published rates."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.families.macbert.similar import SimilarWords, load_similar_words, write_similar
from megaptm.families.spanbert.masking import GEOMETRIC_WEIGHTS
from megaptm.objectives import build_objective
from megaptm.objectives.masked import MaskedLM
from megaptm.objectives.masking import MASKING_STRATEGIES
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.replacements import span_starts
from tests.data.corpora import SPECIALS, tiny_corpus
from tests.objectives.samples import SPECIAL, original_tokens, random_slice, with_words, word_ids

MASK, CLS, SEP = SPECIAL.mask, SPECIAL.cls, SPECIAL.sep
MACBERT = {"masked-lm": {"hide": "ngrams", "length_weights": [0.4, 0.3, 0.2, 0.1], "show": "similar-words"}}
SIMILAR = f"{__name__}:similar_ids"


def similar_ids(word: tuple[int, ...]) -> np.ndarray | None:
    """A word with an even first id has one similar word: each id plus 1."""
    return None if word[0] % 2 else np.array([word]) + 1


def run_lengths(hidden: np.ndarray) -> list[int]:
    first = span_starts(hidden)
    return np.bincount(np.cumsum(first)[hidden])[1:].tolist()


@pytest.mark.parametrize(
    ("hide", "length_weights", "expected"),
    [
        ("ngrams", (), [6 / 11, 3 / 11, 2 / 11]),
        ("ngrams", (0.4, 0.3, 0.2, 0.1), [0.4, 0.3, 0.2, 0.1]),
        ("token-ngrams", (0.8, 0.1, 0.1), [0.8, 0.1, 0.1]),
        ("spans", (), np.array(GEOMETRIC_WEIGHTS) / sum(GEOMETRIC_WEIGHTS)),
    ],
)
def test_lengths_follow_their_weights(hide, length_weights, expected):
    # The rate is low, so that hidden n-grams seldom touch, and few are cut at the end of the rate.
    tokens, options = np.full(100_000, SPECIALS), {"length_weights": length_weights} if length_weights else {}
    words = {} if hide == "token-ngrams" else {"unit_starts": np.ones(len(tokens), dtype=int)}
    make = MASKING_STRATEGIES[hide](rate=0.004, max_masked=10_000, **words, **options)
    rng = np.random.default_rng(0)
    lengths = [length for _ in range(40) for length in run_lengths(make(tokens, SPECIAL, rng))]
    histogram = np.bincount(lengths, minlength=len(expected) + 1)[1 : len(expected) + 1] / len(lengths)
    assert histogram == pytest.approx(expected, abs=0.025)


@pytest.mark.parametrize("hide", ["ngrams", "spans"])
def test_words_are_hidden_whole(hide):
    task, rng = MaskedLM(hide=hide), np.random.default_rng(0)
    selected = samples = broken = 0
    while selected < 15_000:
        piece = [with_words(random_slice(300, 2, seed=samples)), with_words(random_slice(208))]
        before, is_target = original_tokens(task.make_sample(piece, SampleContext(SPECIAL, rng, 512, True)))
        word = word_ids(before)
        hidden, lengths = np.bincount(word, weights=is_target), np.bincount(word)
        broken += np.count_nonzero((hidden > 0) & (hidden < lengths))
        assert not is_target[before < SPECIALS].any()
        selected, samples = selected + int(is_target.sum()), samples + 1
    # Only the last span of a sample may be cut.
    assert broken <= (samples if hide == "spans" else 0)
    assert selected / samples == pytest.approx(76, abs=0.5)


def test_word_is_hidden_up_to_an_unknown_piece():
    # A long word starts with a piece that the tokenizer does not know: only 8 of the 40 tokens can be hidden.
    tokens = np.array([SPECIAL.cls, *range(SPECIALS, SPECIALS + 8), SPECIAL.pad, *range(SPECIALS + 8, SPECIALS + 40)])
    starts = np.concatenate((np.ones(10, dtype=int), np.zeros(32, dtype=int)))
    hide = MASKING_STRATEGIES["spans"](rate=0.5, max_masked=30, unit_starts=starts)
    assert np.flatnonzero(hide(tokens, SPECIAL, np.random.default_rng(0))).tolist() == [*range(1, 9)]
    hide_nothing = MASKING_STRATEGIES["spans"](rate=0.5, max_masked=30, unit_starts=starts[9:])
    assert not hide_nothing(tokens[9:], SPECIAL, np.random.default_rng(0)).any()


@pytest.mark.parametrize("hide", sorted(MASKING_STRATEGIES))
def test_nothing_is_hidden_without_text(hide):
    task = build_objective({"translation-lm": {"hide": hide}})
    alone = random_slice(4, 3)  # the other text of the pair is empty
    alone.annotations.update(parts=np.zeros(1, np.int32), words=np.zeros(1, np.int32))
    sample = task.make_sample([alone], SampleContext(SPECIAL, np.random.default_rng(0), 32, True))
    task.batch_spec(32, True).check(sample, maker=task.name)
    assert (sample["labels"] == IGNORED).all()


def test_tokens_of_a_span_are_replaced_alike():
    task, rng = MaskedLM(hide="spans", show="spans"), np.random.default_rng(0)
    outcomes = np.zeros(3)
    for number in range(400):
        sample = task.make_sample(
            [with_words(random_slice(510, 1, seed=number))], SampleContext(SPECIAL, rng, 512, False)
        )
        before, is_target = original_tokens(sample)
        after = sample["tokens"]
        for span in np.split(np.flatnonzero(is_target), np.flatnonzero(np.diff(np.flatnonzero(is_target)) > 1) + 1):
            masked, same = after[span] == MASK, after[span] == before[span]
            assert masked.all() or not masked.any()
            assert masked.any() or same.all() or same.mean() <= 0.5  # a random token may equal the original
            outcomes += [masked.all(), not masked.any() and not same.all(), same.all()]
    assert outcomes / outcomes.sum() == pytest.approx([0.8, 0.1, 0.1], abs=0.015)


def test_similar_words_replace_words():
    """No mask token is shown. Words without a similar word are replaced by random tokens."""
    task = build_objective({"masked-lm": {**MACBERT["masked-lm"], "similar": SIMILAR}})
    assert isinstance(task, MaskedLM)
    rng, outcomes = np.random.default_rng(0), np.zeros((2, 3))
    for number in range(800):
        sample = task.make_sample(
            [with_words(random_slice(510, 1, seed=number))], SampleContext(SPECIAL, rng, 512, False)
        )
        before, is_target = original_tokens(sample)
        after = sample["tokens"]
        assert MASK not in after
        assert (after[~is_target] == before[~is_target]).all()
        positions = np.flatnonzero(is_target)
        for word in np.split(positions, np.flatnonzero((np.diff(positions) > 1) | (before[positions[1:]] % 3 > 0)) + 1):
            similar, same = (after[word] == before[word] + 1).all(), (after[word] == before[word]).all()
            outcomes[before[word[0]] % 2] += [similar, not similar and not same, same]
    even, odd = outcomes / outcomes.sum(axis=1, keepdims=True)
    assert even == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert odd == pytest.approx([0.0, 0.9, 0.1], abs=0.01)


@pytest.mark.parametrize("hide", ["tokens", "spans", "token-ngrams"])
def test_similar_words_change_target_positions_only(hide):
    task = build_objective({"masked-lm": {"hide": hide, "show": "similar-words", "similar": SIMILAR}})
    changed = 0.0
    for number in range(40):
        rng = np.random.default_rng(number)
        sample = task.make_sample(
            [with_words(random_slice(126, 1, seed=number))], SampleContext(SPECIAL, rng, 128, False)
        )
        before, is_target = original_tokens(sample)
        assert (sample["tokens"][~is_target] == before[~is_target]).all()
        changed += (sample["tokens"][is_target] != before[is_target]).mean() / 40
    assert changed == pytest.approx(0.9, abs=0.05)


def test_pairs_hide_whole_words_of_a_corpus(tmp_path):
    tiny_corpus(tmp_path / "c", documents=60, lengths=(30, 120))
    for objective in ("masked-lm-whole-word-next-sentence", "masked-lm-ngrams-sentence-order"):
        mix, again = (
            open_mix({str(tmp_path / "c"): 1.0}, objective=objective, sequence=48, seed=0, special=SPECIAL, window=2)
            for _ in range(2)
        )
        num_targets = 0
        for number in range(150):
            sample = mix.sample(number)
            assert all((sample[name] == value).all() for name, value in again.sample(number).items())
            before, is_target = original_tokens(sample)
            word = word_ids(before)
            hidden = np.bincount(word, weights=is_target)
            assert set(hidden[hidden > 0] - np.bincount(word)[hidden > 0]) <= {0}
            assert not is_target[before < SPECIALS].any()
            num_targets += int(is_target.sum())
        assert num_targets > 600


def test_corpus_without_words_is_rejected(tmp_path):
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


def test_span_boundary_next_to_unknown_piece():
    task, rng = build_objective("masked-lm-span-boundary"), np.random.default_rng(0)
    text = np.arange(SPECIALS, SPECIALS + 60)
    text[1::2] = SPECIALS - 1  # an unknown piece next to each span
    words = np.arange(60)
    sample = task.make_sample([DocumentSlice(text, 1, {"words": words})], SampleContext(SPECIAL, rng, 62, False))
    predicted, within = sample["labels"] != IGNORED, sample["masked_positions"] > 1
    assert (sample["span_labels"][predicted & within] == sample["labels"][predicted & within]).all()


def test_span_boundaries_are_visible():
    """Tokens beside a span are never masked, are ordinary, and belong to the same document."""
    task, rng = build_objective("masked-lm-span-boundary"), np.random.default_rng(0)
    num_labels = 0
    for number in range(50):
        sample = task.make_sample(
            [with_words(random_slice(300, 2, seed=number)), with_words(random_slice(206))],
            SampleContext(SPECIAL, rng, 512, True),
        )
        task.batch_spec(512, True).check(sample, maker=task.name)
        before, is_target = original_tokens(sample)
        real = sample["span_labels"] != IGNORED
        left_positions, right_positions, offset = (sample[f"span_{name}"][real] for name in ("left", "right", "offset"))
        assert not is_target[left_positions].any()
        assert not is_target[right_positions].any()
        assert (before[left_positions] >= SPECIALS).all()
        assert (before[right_positions] >= SPECIALS).all()
        assert (sample["span_labels"][real] == before[left_positions + 1 + offset]).all()
        assert (sample["document_ids"][left_positions] == sample["document_ids"][right_positions]).all()
        num_labels += real.sum()
    assert num_labels / 50 > 60


def test_similar_words_round_trip(tmp_path):
    write_similar({(7,): [(8,), (9,)], (7, 8): [(1, 2)], (5,): [(6,)]}, tmp_path / "similar.npz")
    similar_words = load_similar_words(str(tmp_path / "similar.npz"))
    assert isinstance(similar_words, SimilarWords)
    assert (len(similar_words), similar_words.max_id) == (3, 9)
    assert similar_words((7,)).tolist() == [[8], [9]]
    assert similar_words((5,)).tolist() == [[6]]
    assert similar_words((7, 8)).tolist() == [[1, 2]]
    assert similar_words((8,)) is None


def test_missing_table_of_similar_words_is_rejected():
    macbert = build_objective(MACBERT)
    message = "objective masked-lm-ngrams-similar-words needs a table of similar words: set the option"
    with pytest.raises(UserError, match=message):
        macbert.check(SPECIAL, 64)


@pytest.fixture
def invalid_tables(tmp_path, monkeypatch):
    """A folder of files that are not valid tables of similar words."""
    (tmp_path / "bad.npz").write_text("no table")
    write_similar({(7,): [(5000,)]}, tmp_path / "other.npz")
    monkeypatch.setattr("megaptm.families.macbert.similar.MAX_BYTES", 1 << 20)
    word = np.array([[7]])
    for name, words, similar in (
        ("flat", word[0], word),
        ("longer", word, np.array([[[8, 9]]])),
        ("below", np.array([[7, 8]]), np.array([[[9, -1]]])),
        ("bomb", np.zeros((1 << 18, 1)), word),
    ):
        np.savez_compressed(tmp_path / f"{name}.npz", **{"words-1": words, "similar-1": similar})
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        # These compressions unpack to any size, whatever the archive states.
        with (
            zipfile.ZipFile(tmp_path / "other.npz") as source,
            zipfile.ZipFile(tmp_path / f"{kind}.npz", "w", kind) as packed,
        ):
            for member in source.infolist():
                packed.writestr(member.filename, source.read(member), kind)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{zipfile.ZIP_BZIP2}.npz", "a compression type that numpy does not use"),
        (f"{zipfile.ZIP_LZMA}.npz", "a compression type that numpy does not use"),
        ("bad.npz", "is not a table of similar words"),
        ("none.npz", r"is not a table of similar words \(no such file\)"),
        ("flat.npz", "its arrays are not tables of ids"),
        ("longer.npz", r"words of 1 tokens have similar words of shape \(1, 1, 2\)"),
        ("below.npz", "it has negative ids"),
        ("bomb.npz", r"it unpacks to \d,\d+,\d+ bytes"),
        ("other.npz", "has ids up to 5000, but the tokenizer has 1000 ids"),
    ],
)
def test_invalid_table_of_similar_words_is_rejected(invalid_tables, name, message):
    task = build_objective({"masked-lm": {**MACBERT["masked-lm"], "similar": str(invalid_tables / name)}})
    with pytest.raises(UserError, match=message):
        task.check(SPECIAL, 64)

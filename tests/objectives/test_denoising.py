"""BART's five noises: what each leaves of a text, how often it strikes, and what the decoder is told and asked."""

import math
from collections import Counter

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.denoising import Denoising, permuted_sentences, span_lengths
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.objectives.rows import SPECIAL, documents, part

BEGIN, END, MASK, PAD = SPECIAL.begin, SPECIAL.end, SPECIAL.mask, SPECIAL.pad
NOTHING = {"infill_rate": 0.0, "permute_rate": 0.0}
"""Of options: what the published noises are turned off by."""


def text(length: int, sentences: tuple[int, ...] = (), words: tuple[int, ...] = (), seed: int = 0) -> DocumentSlice:
    """Tokens of a document, and where its sentences and words begin."""
    known = {"sentences": np.array(sentences, dtype=np.int32), "words": np.array(words, dtype=np.int32)}
    return DocumentSlice(part(length, seed=seed).tokens, 2, known)


def corrupt(task: Denoising, piece: DocumentSlice, seed: int = 0) -> np.ndarray:
    return task.corrupt(piece, SPECIAL, np.random.default_rng(seed))


def letters(task: Denoising, seed: int) -> str:
    """What becomes of `ABC. DE.`, the example of the paper's figure 2: a letter a token, `_` for the mask."""
    special = SpecialTokens(size=128, mask=ord("_"), specials=frozenset({ord("_")}))
    tokens = np.frombuffer(b"ABC.DE.", dtype=np.uint8)
    known = {"sentences": np.array([0, 4]), "words": np.array([0, 1, 2, 3, 4, 5, 6])}
    return bytes(task.corrupt(DocumentSlice(tokens, 2, known), special, np.random.default_rng(seed)).tolist()).decode()


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"mask_rate": 0.25}, {"A_C._E.", "_B_.DE."}),
        ({"delete_rate": 0.25}, {"AC.E.", "BC.DE"}),
        ({"infill_rate": 0.25}, {"A_.D_E.", "A_.DE.", "ABC.D_"}),
        ({"permute_rate": 1.0}, {"DE.ABC.", "ABC.DE."}),
        ({"rotate_prob": 1.0}, {"C.DE.AB", "ABC.DE."}),
    ],
)
def test_each_noise_does_to_the_papers_example_what_its_figure_shows(options, seen):
    found = {letters(Denoising(**{**NOTHING, **options}), seed) for seed in range(3000)}
    assert seen <= found


def test_the_published_one_hides_three_in_ten_tokens_in_poisson_spans():
    """Of 200,000 tokens, and of 100,000 spans: one in 20 has no token."""
    task, hidden, masks, raw = Denoising(permute_rate=0.0), 0, 0, 0
    for number in range(400):
        shown = corrupt(task, text(512, seed=number), number)
        kept = shown[shown != MASK]
        hidden, masks, raw = hidden + 512 - len(kept), masks + len(shown) - len(kept), raw + 512
    assert hidden / raw == pytest.approx(0.3, abs=0.003)
    # A mask for each span; the share cuts the last of a text short, which is one of 51.
    assert hidden / masks == pytest.approx(3.0, abs=0.06)
    counts = Counter(span_lengths(300_000, poisson_lambda=3.0, rng=np.random.default_rng(0)).tolist())
    for length in range(8):
        expected = math.exp(-3) * 3**length / math.factorial(length)
        assert counts[length] / counts.total() == pytest.approx(expected, abs=0.003)


def test_spans_lie_anywhere_and_the_rest_stays_in_order():
    task, first = Denoising(permute_rate=0.0), Counter()
    for number in range(2000):
        piece = text(20, seed=number)
        shown = corrupt(task, piece, number)
        rest = iter(piece.tokens.tolist())
        assert all(token in rest for token in shown[shown != MASK].tolist())
        assert len(shown) <= 20
        first["mask"] += shown[0] == MASK
        last = "mask" if shown[-1] == MASK else "token"
        first[f"last {last}"] += 1
    # A text is as often masked at its end as at its beginning.
    assert first["mask"] / 2000 == pytest.approx(first["last mask"] / 2000, abs=0.04)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
def test_masked_and_deleted_tokens_are_as_many_as_said(rate):
    piece = text(200)
    masked, deleted = (corrupt(Denoising(**NOTHING, **{how: rate}), piece) for how in ("mask_rate", "delete_rate"))
    count = math.ceil(rate * 200)
    assert (len(masked), np.count_nonzero(masked == MASK)) == (200, count)
    assert (masked == np.where(masked == MASK, MASK, piece.tokens)).all()
    assert len(deleted) == 200 - count
    assert MASK not in deleted
    rest = iter(piece.tokens.tolist())
    assert all(token in rest for token in deleted.tolist())


def test_noises_add_up():
    task = Denoising(infill_rate=0.2, mask_rate=0.1, delete_rate=0.3, permute_rate=0.0)
    shown = corrupt(task, text(1000))
    assert np.count_nonzero(shown != MASK) == 1000 - 200 - 100 - 300


def test_sentences_and_rotated_texts_keep_their_tokens():
    piece = text(60, sentences=(0, 7, 8, 30, 55))
    sentences = {tuple(sentence.tolist()) for sentence in np.split(piece.tokens, [7, 8, 30, 55])}
    orders, starts = Counter(), Counter()
    for seed in range(600):
        permuted = corrupt(Denoising(infill_rate=0.0), piece, seed).tolist()
        assert sorted(permuted) == sorted(piece.tokens.tolist())
        found = []
        while permuted:
            found.append(next(s for s in sentences if tuple(permuted[: len(s)]) == s))
            permuted = permuted[len(found[-1]) :]
        assert {*found} == sentences
        orders[tuple(found)] += 1
        rotated = corrupt(Denoising(**NOTHING, rotate_prob=1.0), piece, seed)
        (by,) = (n for n in range(60) if (np.roll(piece.tokens, -n) == rotated).all())
        starts[by] += 1
    assert len(orders) > 110  # of 120
    assert len(starts) == 60  # any token may be the first
    turned = sum((corrupt(Denoising(**NOTHING, rotate_prob=0.25), piece, n) != piece.tokens).any() for n in range(800))
    assert turned / 800 == pytest.approx(0.25 * 59 / 60, abs=0.04)


def test_a_share_of_the_sentences_moves():
    rng, starts = np.random.default_rng(0), np.arange(0, 100, 10)
    moved = []
    for _ in range(200):
        order = permuted_sentences(starts, 100, 0.3, rng)
        assert sorted(order.tolist()) == [*range(100)]
        moved.append(np.count_nonzero(order[::10] != starts))
    assert max(moved) == 3


def test_words_are_hidden_whole_and_counted():
    """Words of four tokens: three in ten of them, and none in part, wherever sentences go."""
    piece = text(400, sentences=tuple(range(0, 400, 40)), words=tuple(range(0, 400, 4)))
    task = OBJECTIVES["denoising-whole-word"]
    assert (task.annotations, task.poisson_lambda, task.random_token_prob) == (("sentences", "words"), 3.5, 0.1)
    shown = corrupt(Denoising(hide="whole-words"), piece)
    whole = Counter(piece.tokens.tolist())
    kept = shown[shown != MASK].reshape(-1, 4)
    assert len(kept) == 70
    words = {tuple(word) for word in piece.tokens.reshape(-1, 4).tolist()}
    assert {tuple(word) for word in kept.tolist()} <= words
    assert not Counter(kept.ravel().tolist()) - whole


def test_some_masks_are_random_tokens():
    task = Denoising(**NOTHING, mask_rate=0.5, random_token_prob=0.2)
    piece = text(20_000)
    shown = corrupt(task, piece)
    assert np.count_nonzero(shown == MASK) / 10_000 == pytest.approx(0.8, abs=0.02)
    assert not SPECIAL.is_special[shown[shown != MASK]].any()


def row(task: Denoising, seed: int, document_mask: bool = True) -> tuple[list[DocumentSlice], dict[str, np.ndarray]]:
    piece = [text(40, (0, 9, 21), seed=1), text(0), text(1, (0,)), text(60, (3, 50), seed=2)]
    sample = task.make(piece, SampleContext(SPECIAL, np.random.default_rng(seed), 128, document_mask))
    task.batch(128, document_mask).check(sample, maker=task.name)
    return piece, sample


def test_the_decoder_says_each_document_as_it_was_from_the_end_token_on():
    piece, sample = row(OBJECTIVES["denoising"], 0)
    said = documents(sample, "labels", "decoder_document_ids")
    assert said == [[BEGIN, *one.tokens.tolist(), END] for one in piece if len(one.tokens)]
    assert documents(sample, "decoder_tokens", "decoder_document_ids") == [[END, *one[:-1]] for one in said]
    assert (sample["labels"][sample["decoder_document_ids"] == 0] == IGNORED).all()
    read = documents(sample)
    assert len(read) == len(said) == 3
    for spoiled, whole in zip(read, said, strict=True):
        assert (spoiled[0], spoiled[-1]) == (BEGIN, END)
        assert len(spoiled) <= len(whole)
        assert PAD not in spoiled
    # Places of each document count from 0, on both sides.
    for prefix in ("", "decoder_"):
        for number in (1, 2, 3):
            places = sample[f"{prefix}positions"][sample[f"{prefix}document_ids"] == number]
            assert places.tolist() == [*range(len(places))]


def test_without_document_mask_the_row_is_one_text_whose_documents_are_spoiled_by_themselves():
    piece, sample = row(OBJECTIVES["denoising"], 0, document_mask=False)
    assert {*sample["document_ids"].tolist()} == {*sample["decoder_document_ids"].tolist()} == {0, 1}
    asked = sample["labels"][sample["labels"] != IGNORED].tolist()
    assert [token for token in asked if token not in (BEGIN, END)] == [t for one in piece for t in one.tokens.tolist()]
    ends = np.count_nonzero(sample["tokens"] == END)
    assert ends == np.count_nonzero(sample["labels"] == END)  # no border between documents is hidden


def test_what_is_hidden_changes_nothing_that_the_decoder_hears_or_is_asked():
    task = OBJECTIVES["denoising"]
    one, other = row(task, 1)[1], row(task, 2)[1]
    assert not np.array_equal(one["tokens"], other["tokens"])
    for field in ("decoder_tokens", "decoder_positions", "decoder_document_ids", "labels"):
        assert np.array_equal(one[field], other[field])
    # And a sample is what its generator says, whatever was made before it.
    again = row(task, 1)[1]
    assert all(np.array_equal(one[field], again[field]) for field in one)


def test_no_row_overflows_however_short_its_documents():
    for seed in range(50):
        piece = [text(length, (0,), seed=seed) for length in [1, 2, 3] * 14]
        task = Denoising(infill_rate=0.4, poisson_lambda=1.0, rotate_prob=0.5)
        sample = task.make(piece, SampleContext(SPECIAL, np.random.default_rng(seed), 168, True))
        assert len(documents(sample)) == len(documents(sample, "labels", "decoder_document_ids")) == 42


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"infill_rate": 0.5, "mask_rate": 0.4, "delete_rate": 0.3},
            "infill_rate, mask_rate and delete_rate sum to 1.2",
        ),
        ({"infill_rate": 0.0, "permute_rate": 0.0}, "so that the input is the target: raise one"),
        ({"poisson_lambda": 0.5}, r"objective.denoising.poisson_lambda must be at least 1.0, not 0.5"),
        ({"hide": "letters"}, r"objective.denoising.hide must be 'tokens' or 'whole-words', not 'letters'."),
        ({"noise": 1}, "unknown option noise"),
    ],
)
def test_what_cannot_be_is_told(options, told):
    with pytest.raises(UserError, match=told):
        build_objective({"denoising": options})


def test_a_tokenizer_without_its_tokens_is_refused():
    with pytest.raises(UserError, match=r"needs a tokenizer with a `begin` token: .* tokenizer.specials=roberta"):
        OBJECTIVES["denoising"].check(SpecialTokens(size=9, pad=0, cls=1, sep=2, mask=3), 128)


def test_the_first_places_of_each_document_see_all_where_that_is_asked():
    task, context = Denoising(global_tokens=2), SampleContext(SPECIAL, np.random.default_rng(0), 64, document_mask=True)
    sample = task.make([text(20), text(30)], context)
    task.batch(64, True).check(sample, maker="denoising")
    marks, numbers = sample["global_tokens"], sample["document_ids"]
    begins = np.flatnonzero(np.diff(numbers, prepend=0) * (numbers > 0))
    assert len(begins) == 2
    assert np.flatnonzero(marks).tolist() == sorted([*begins, *(begins + 1)])
    assert task.text_fields(4)["global_tokens"].tolist() == [1, 1, 0, 0]
    assert "global_tokens" not in Denoising().batch(64, True).fields

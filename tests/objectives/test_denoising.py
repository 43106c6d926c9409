"""The five noises of BART: what each does to a text, how often, and the inputs and labels of the decoder."""

import math
from collections import Counter

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.families.bart.objectives import BartDenoising, permute_sentences, sample_span_lengths
from megaptm.objectives import OBJECTIVES, SpecialTokens, build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.objectives.samples import SPECIAL, random_slice, split_documents

BEGIN, END, MASK, PAD = SPECIAL.begin, SPECIAL.end, SPECIAL.mask, SPECIAL.pad
NO_NOISE = {"infill_rate": 0.0, "permute_rate": 0.0}
"""Options that turn the default noises off."""


def annotated_slice(
    length: int, sentences: tuple[int, ...] = (), words: tuple[int, ...] = (), seed: int = 0
) -> DocumentSlice:
    """Return a slice of random tokens with annotated starts of sentences and words."""
    annotations = {"sentences": np.array(sentences, dtype=np.int32), "words": np.array(words, dtype=np.int32)}
    return DocumentSlice(random_slice(length, seed=seed).tokens, 2, annotations)


def corrupt(task: BartDenoising, piece: DocumentSlice, seed: int = 0) -> np.ndarray:
    return task.corrupt(piece, SPECIAL, np.random.default_rng(seed))


def corrupt_letters(task: BartDenoising, seed: int) -> str:
    """Corrupt `ABC.DE.`, the example of figure 2 of the paper: one letter is one token, `_` is the mask."""
    special = SpecialTokens(size=128, mask=ord("_"), specials=frozenset({ord("_")}))
    tokens = np.frombuffer(b"ABC.DE.", dtype=np.uint8)
    annotations = {"sentences": np.array([0, 4]), "words": np.array([0, 1, 2, 3, 4, 5, 6])}
    return bytes(
        task.corrupt(DocumentSlice(tokens, 2, annotations), special, np.random.default_rng(seed)).tolist()
    ).decode()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mask_rate": 0.25}, {"A_C._E.", "_B_.DE."}),
        ({"delete_rate": 0.25}, {"AC.E.", "BC.DE"}),
        ({"infill_rate": 0.25}, {"A_.D_E.", "A_.DE.", "ABC.D_"}),
        ({"permute_rate": 1.0}, {"DE.ABC.", "ABC.DE."}),
        ({"rotate_prob": 1.0}, {"C.DE.AB", "ABC.DE."}),
    ],
)
def test_noises_of_the_papers_figure(options, expected):
    outputs = {corrupt_letters(BartDenoising(**{**NO_NOISE, **options}), seed) for seed in range(3000)}
    assert expected <= outputs


def test_default_hides_30_percent_in_poisson_spans():
    """Measured on 200,000 tokens and 300,000 span lengths."""
    task, hidden, masks = BartDenoising(permute_rate=0.0), 0, 0
    for seed in range(400):
        shown = corrupt(task, annotated_slice(512, seed=seed), seed)
        visible = shown[shown != MASK]
        hidden, masks = hidden + 512 - len(visible), masks + len(shown) - len(visible)
    assert hidden / (400 * 512) == pytest.approx(0.3, abs=0.003)
    # One mask per span. The rate cuts the last of about 51 spans of a text short.
    assert hidden / masks == pytest.approx(3.0, abs=0.06)
    counts = Counter(sample_span_lengths(300_000, poisson_lambda=3.0, rng=np.random.default_rng(0)).tolist())
    for length in range(8):
        expected = math.exp(-3) * 3**length / math.factorial(length)
        assert counts[length] / counts.total() == pytest.approx(expected, abs=0.003)


def test_spans_start_anywhere_and_keep_the_order():
    task, first = BartDenoising(permute_rate=0.0), Counter()
    for seed in range(2000):
        piece = annotated_slice(20, seed=seed)
        shown = corrupt(task, piece, seed)
        remaining = iter(piece.tokens.tolist())
        assert all(token in remaining for token in shown[shown != MASK].tolist())
        assert len(shown) <= 20
        first["mask"] += shown[0] == MASK
        last = "mask" if shown[-1] == MASK else "token"
        first[f"last {last}"] += 1
    # The last token is masked as often as the first.
    assert first["mask"] / 2000 == pytest.approx(first["last mask"] / 2000, abs=0.04)


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.75])
def test_mask_and_delete_rates_are_exact(rate):
    piece = annotated_slice(200)
    masked, deleted = (
        corrupt(BartDenoising(**NO_NOISE, **{option: rate}), piece) for option in ("mask_rate", "delete_rate")
    )
    count = math.ceil(rate * 200)
    assert (len(masked), np.count_nonzero(masked == MASK)) == (200, count)
    assert (masked == np.where(masked == MASK, MASK, piece.tokens)).all()
    assert len(deleted) == 200 - count
    assert MASK not in deleted
    remaining = iter(piece.tokens.tolist())
    assert all(token in remaining for token in deleted.tolist())


def test_noises_combine():
    task = BartDenoising(infill_rate=0.2, mask_rate=0.1, delete_rate=0.3, permute_rate=0.0)
    shown = corrupt(task, annotated_slice(1000))
    assert np.count_nonzero(shown != MASK) == 1000 - 200 - 100 - 300


def test_permutation_and_rotation_keep_tokens():
    piece = annotated_slice(60, sentences=(0, 7, 8, 30, 55))
    sentences = {tuple(sentence.tolist()) for sentence in np.split(piece.tokens, [7, 8, 30, 55])}
    orders, starts = Counter(), Counter()
    for seed in range(600):
        permuted = corrupt(BartDenoising(infill_rate=0.0), piece, seed).tolist()
        assert sorted(permuted) == sorted(piece.tokens.tolist())
        order = []
        while permuted:
            order.append(next(s for s in sentences if tuple(permuted[: len(s)]) == s))
            permuted = permuted[len(order[-1]) :]
        assert {*order} == sentences
        orders[tuple(order)] += 1
        rotated = corrupt(BartDenoising(**NO_NOISE, rotate_prob=1.0), piece, seed)
        (start,) = (n for n in range(60) if (np.roll(piece.tokens, -n) == rotated).all())
        starts[start] += 1
    assert len(orders) > 110  # of 120
    assert len(starts) == 60  # any token may be the first
    num_rotated = sum(
        (corrupt(BartDenoising(**NO_NOISE, rotate_prob=0.25), piece, n) != piece.tokens).any() for n in range(800)
    )
    assert num_rotated / 800 == pytest.approx(0.25 * 59 / 60, abs=0.04)


def test_permute_rate_limits_moved_sentences():
    rng, starts = np.random.default_rng(0), np.arange(0, 100, 10)
    moved = []
    for _ in range(200):
        order = permute_sentences(starts, 100, 0.3, rng)
        assert sorted(order.tolist()) == [*range(100)]
        moved.append(np.count_nonzero(order[::10] != starts))
    assert max(moved) == 3


def test_whole_words_are_hidden():
    """Exactly 30 of 100 words of four tokens are hidden, and none in part, wherever sentences move."""
    piece = annotated_slice(400, sentences=tuple(range(0, 400, 40)), words=tuple(range(0, 400, 4)))
    task = OBJECTIVES["denoising-whole-word"]
    assert (task.annotations, task.poisson_lambda, task.random_token_prob) == (("sentences", "words"), 3.5, 0.1)
    shown = corrupt(BartDenoising(hide="whole-words"), piece)
    visible = shown[shown != MASK].reshape(-1, 4)
    assert len(visible) == 70
    words = {tuple(word) for word in piece.tokens.reshape(-1, 4).tolist()}
    assert {tuple(word) for word in visible.tolist()} <= words
    assert not Counter(visible.ravel().tolist()) - Counter(piece.tokens.tolist())


def test_random_tokens_replace_some_masks():
    task = BartDenoising(**NO_NOISE, mask_rate=0.5, random_token_prob=0.2)
    piece = annotated_slice(20_000)
    shown = corrupt(task, piece)
    assert np.count_nonzero(shown == MASK) / 10_000 == pytest.approx(0.8, abs=0.02)
    assert not SPECIAL.is_special[shown[shown != MASK]].any()


def make_sample(
    task: BartDenoising, seed: int, document_mask: bool = True
) -> tuple[list[DocumentSlice], dict[str, np.ndarray]]:
    """Return four slices, one of them empty, and their sample."""
    piece = [
        annotated_slice(40, (0, 9, 21), seed=1),
        annotated_slice(0),
        annotated_slice(1, (0,)),
        annotated_slice(60, (3, 50), seed=2),
    ]
    sample = task.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(seed), 128, document_mask))
    task.batch_spec(128, document_mask).check(sample, maker=task.name)
    return piece, sample


def test_decoder_labels_are_the_original_documents():
    """Decoder inputs are the labels shifted by one, after the end token."""
    piece, sample = make_sample(OBJECTIVES["denoising"], 0)
    labels = split_documents(sample, "labels", "decoder_document_ids")
    assert labels == [[BEGIN, *document.tokens.tolist(), END] for document in piece if len(document.tokens)]
    assert split_documents(sample, "decoder_tokens", "decoder_document_ids") == [
        [END, *document[:-1]] for document in labels
    ]
    assert (sample["labels"][sample["decoder_document_ids"] == 0] == IGNORED).all()
    inputs = split_documents(sample)
    assert len(inputs) == len(labels) == 3
    for corrupted, original in zip(inputs, labels, strict=True):
        assert (corrupted[0], corrupted[-1]) == (BEGIN, END)
        assert len(corrupted) <= len(original)
        assert PAD not in corrupted
    # Positions restart in each document, in the encoder and in the decoder.
    for prefix in ("", "decoder_"):
        for document in (1, 2, 3):
            positions = sample[f"{prefix}positions"][sample[f"{prefix}document_ids"] == document]
            assert positions.tolist() == [*range(len(positions))]


def test_without_document_mask_documents_are_corrupted_one_by_one():
    piece, sample = make_sample(OBJECTIVES["denoising"], 0, document_mask=False)
    assert {*sample["document_ids"].tolist()} == {*sample["decoder_document_ids"].tolist()} == {0, 1}
    labels = sample["labels"][sample["labels"] != IGNORED].tolist()
    tokens = [token for document in piece for token in document.tokens.tolist()]
    assert [token for token in labels if token not in (BEGIN, END)] == tokens
    ends = np.count_nonzero(sample["tokens"] == END)
    assert ends == np.count_nonzero(sample["labels"] == END)  # no border between documents is hidden


def test_noise_changes_encoder_inputs_only():
    task = OBJECTIVES["denoising"]
    sample, other = make_sample(task, 1)[1], make_sample(task, 2)[1]
    assert not np.array_equal(sample["tokens"], other["tokens"])
    for field in ("decoder_tokens", "decoder_positions", "decoder_document_ids", "labels"):
        assert np.array_equal(sample[field], other[field])
    # A sample depends only on its generator, not on the samples made before.
    again = make_sample(task, 1)[1]
    assert all(np.array_equal(sample[field], again[field]) for field in sample)


def test_short_documents_fit():
    for seed in range(50):
        piece = [annotated_slice(length, (0,), seed=seed) for length in [1, 2, 3] * 14]
        task = BartDenoising(infill_rate=0.4, poisson_lambda=1.0, rotate_prob=0.5)
        sample = task.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(seed), 168, True))
        assert len(split_documents(sample)) == len(split_documents(sample, "labels", "decoder_document_ids")) == 42


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"infill_rate": 0.5, "mask_rate": 0.4, "delete_rate": 0.3},
            "infill_rate, mask_rate and delete_rate sum to 1.2",
        ),
        ({"infill_rate": 0.0, "permute_rate": 0.0}, "so that the input is the target: raise one"),
        ({"poisson_lambda": 0.5}, r"objective.denoising.poisson_lambda must be at least 1.0, not 0.5"),
        (
            {"hide": "letters"},
            r"objective.denoising.hide must be 'tokens' or 'whole-words', not 'letters'.",
        ),
        ({"noise": 1}, "unknown option noise"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        build_objective({"denoising": options})


def test_tokenizer_without_begin_token_is_rejected():
    with pytest.raises(UserError, match=r"needs a tokenizer with a `begin` token: .* tokenizer.specials=roberta"):
        OBJECTIVES["denoising"].check(SpecialTokens(size=9, pad=0, cls=1, sep=2, mask=3), 128)


def test_first_positions_of_documents_are_global():
    task, context = (
        BartDenoising(global_tokens=2),
        SampleContext(SPECIAL, np.random.default_rng(0), 64, document_mask=True),
    )
    sample = task.make_sample([annotated_slice(20), annotated_slice(30)], context)
    task.batch_spec(64, True).check(sample, maker="denoising")
    global_tokens, document_ids = sample["global_tokens"], sample["document_ids"]
    starts = np.flatnonzero(np.diff(document_ids, prepend=0) * (document_ids > 0))
    assert len(starts) == 2
    assert np.flatnonzero(global_tokens).tolist() == sorted([*starts, *(starts + 1)])
    assert task.text_fields(4)["global_tokens"].tolist() == [1, 1, 0, 0]
    assert "global_tokens" not in BartDenoising().batch_spec(64, True).fields

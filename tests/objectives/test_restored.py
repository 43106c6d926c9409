"""The objectives that T5 was compared with: what the encoder is shown of a text, and what the decoder is asked."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.objective import SampleContext
from tests.objectives.samples import SPECIAL, random_slice, split_documents
from tests.objectives.test_spans import put_back

END, PAD = SPECIAL.end, SPECIAL.pad
NAMES = [name for name, task in OBJECTIVES.items() if isinstance(task, EncoderDecoder) and name != "span-corruption"]


def sides(name: str, *lengths: int, sequence: int = 128, seed: int = 0) -> list[tuple[list[int], ...]]:
    """Text, input and target of each document of a row, without their ends."""
    piece = [random_slice(length, seed=number) for number, length in enumerate(lengths)]
    sample = OBJECTIVES[name].make(piece, SampleContext(SPECIAL, np.random.default_rng(seed), sequence, True))
    shown, asked = split_documents(sample), split_documents(sample, "labels", "decoder_document_ids")
    heard = split_documents(sample, "decoder_tokens", "decoder_document_ids")
    assert heard == [[PAD, *target[:-1]] for target in asked]
    assert {text[-1] for text in (*shown, *asked)} == {END}
    texts = [one.tokens.tolist() for one in piece]
    return [(text, read[:-1], said[:-1]) for text, read, said in zip(texts, shown, asked, strict=False)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", [(1000,), (60, 1, 40), (1, 2, 3, 4) * 30], ids=["one", "three", "tiny"])
def test_rows_are_what_was_said_and_hold_their_texts(name, lengths):
    task = OBJECTIVES[name]
    raw = task.raw_length(128)
    piece = [random_slice(min(length, raw), seed=seed) for seed, length in enumerate(lengths)]
    for rng in map(np.random.default_rng, range(20)):
        sample = task.make(piece, SampleContext(SPECIAL, rng, 128, True))
        task.batch(128, document_mask=True).check(sample, maker=name)
        assert sample["document_ids"].max() == sample["decoder_document_ids"].max() >= min(3, len(lengths))
        assert (sample["labels"][sample["decoder_document_ids"] == 0] == IGNORED).all()


@pytest.mark.parametrize("name", [*NAMES, "span-corruption"])
def test_each_document_of_a_row_has_its_own_places_on_both_sides(name):
    piece = [random_slice(length, seed=length) for length in (60, 1, 40)]
    sample = OBJECTIVES[name].make(piece, SampleContext(SPECIAL, np.random.default_rng(0), 128, True))
    for prefix in ("", "decoder_"):
        places = split_documents(sample, f"{prefix}positions", f"{prefix}document_ids")
        assert len(places) == 3
        assert places == [[*range(len(of_one))] for of_one in places]


def test_tokens_that_are_hidden_by_themselves_can_be_put_back():
    for seed in range(30):
        for text, shown, asked in sides("token-corruption", 90, 1, 20, seed=seed):
            assert put_back([*shown, END], [*asked, END]) == text
            assert len(text) - sum(token not in SPECIAL.sentinels for token in shown) == max(1, round(0.15 * len(text)))
    # 17 of 111 in a row: of two that meet one is a span by itself.
    spans = [np.isin(sides("token-corruption", 111, seed=seed)[0][1], SPECIAL.sentinels).sum() for seed in range(200)]
    assert np.mean(spans) == pytest.approx(17 * (1 - 16 / 110), abs=0.2)


def test_dropped_tokens_leave_nothing_behind():
    for text, shown, asked in sides("dropped-tokens", 100, 20):
        assert Counter(shown) + Counter(asked) == Counter(text)
        assert len(asked) == round(0.15 * len(text))
        rest = iter(text)
        assert all(token in rest for token in asked)  # in order


def test_a_prefix_ends_anywhere():
    borders = []
    for seed in range(600):
        [(text, shown, asked)] = sides("prefix-lm", 7, seed=seed)
        assert shown + asked == text
        borders.append(len(shown))
    assert all(count == pytest.approx(100, abs=35) for count in Counter(borders).values())
    assert {*borders} == {1, 2, 3, 4, 5, 6}
    assert sides("prefix-lm", 1)[0][1:] == ([random_slice(1).tokens[0]], [])


def test_shuffled_tokens_are_asked_in_their_order():
    [(text, shown, asked)] = sides("deshuffling", 100)
    assert asked == text != shown
    assert Counter(shown) == Counter(text)


@pytest.mark.parametrize(
    ("name", "mask", "random"), [("bert-style", 0.9, 0.1), ("mass-style", 1.0, 0.0), ("seq2seq-masked-lm", 0.8, 0.1)]
)
def test_masks_stand_where_tokens_stood(name, mask, random):
    raw = masked = changed = 0
    for seed in range(400):
        [(text, shown, asked)] = sides(name, 500, sequence=512, seed=seed)
        places = np.flatnonzero(np.array(text) != shown)
        raw, masked, changed = raw + len(text), masked + shown.count(SPECIAL.mask), changed + len(places)
        assert not {*np.array(shown)[places]} & (SPECIAL.specials - {SPECIAL.mask})
        assert asked == text if name.endswith("style") else len(asked) == 75
    assert masked / raw == pytest.approx(0.15 * mask, abs=0.003)
    assert (changed - masked) / raw == pytest.approx(0.15 * random, abs=0.003)


def test_what_is_masked_is_asked_in_order():
    """B11: the hidden tokens alone; those of MASS are half of the text, one after another."""
    task = build_objective({"masked-text": {"mask_token_prob": 1.0, "random_token_prob": 0.0, "ask": "hidden"}})
    text = random_slice(40)
    sample = task.make([text], SampleContext(SPECIAL, np.random.default_rng(0), 64, True))
    places = np.flatnonzero(sample["tokens"] == SPECIAL.mask)
    assert split_documents(sample, "labels", "decoder_document_ids")[0][:-1] == text.tokens[places].tolist()
    begins = set()
    for seed in range(200):
        [(tokens, _, asked)] = sides("mass", 40, seed=seed)
        [begin] = [at for at in range(21) if tokens[at : at + 20] == asked]
        begins.add(begin)
    assert begins == {*range(21)}


def test_a_vocabulary_without_a_mask_shows_its_first_sentinel():
    special = replace(SPECIAL, mask=None)
    sample = OBJECTIVES["mass-style"].make(
        [random_slice(100)], SampleContext(special, np.random.default_rng(0), 128, True)
    )
    assert (sample["tokens"] == SPECIAL.sentinels[0]).sum() == 15


def test_what_cannot_be_served_is_refused():
    with pytest.raises(
        UserError,
        match="objective token-corruption masks 171 spans in a sequence of 1143 tokens, but the tokenizer has",
    ):
        OBJECTIVES["token-corruption"].check(SPECIAL, 1143)
    with pytest.raises(UserError, match="bert-style needs a tokenizer with a `mask` token, or with sentinels"):
        OBJECTIVES["bert-style"].check(replace(SPECIAL, mask=None, sentinels=()), 128)
    with pytest.raises(
        UserError,
        match=r"objective\.masked-text: mask_token_prob \(1\) and random_token_prob \(0\.1\) sum to more than 1:",
    ):
        build_objective({"masked-text": {"mask_token_prob": 1.0}})
    with pytest.raises(UserError, match=r"mean_span_length \(5\) has no effect with hide: tokens"):
        build_objective({"span-corruption": {"hide": "tokens", "mean_span_length": 5}})

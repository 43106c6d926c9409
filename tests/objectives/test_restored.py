"""The objectives that T5 was compared with: encoder inputs and decoder labels."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.objective import SampleContext
from tests.objectives.samples import SPECIAL, fill_sentinels, random_slice, split_documents

END, PAD = SPECIAL.end, SPECIAL.pad
NAMES = [name for name, task in OBJECTIVES.items() if isinstance(task, EncoderDecoder) and name != "span-corruption"]


def make_sides(name: str, *lengths: int, sequence: int = 128, seed: int = 0) -> list[tuple[list[int], ...]]:
    """Return text, input and target of each document of a sample, without end tokens."""
    piece = [random_slice(length, seed=number) for number, length in enumerate(lengths)]
    sample = OBJECTIVES[name].make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(seed), sequence, True))
    inputs, targets = split_documents(sample), split_documents(sample, "labels", "decoder_document_ids")
    decoder_inputs = split_documents(sample, "decoder_tokens", "decoder_document_ids")
    assert decoder_inputs == [[PAD, *target[:-1]] for target in targets]
    assert {tokens[-1] for tokens in (*inputs, *targets)} == {END}
    texts = [document.tokens.tolist() for document in piece]
    return [(text, source[:-1], target[:-1]) for text, source, target in zip(texts, inputs, targets, strict=False)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", [(1000,), (60, 1, 40), (1, 2, 3, 4) * 30], ids=["one", "three", "tiny"])
def test_samples_match_their_batch_spec(name, lengths):
    task = OBJECTIVES[name]
    raw = task.raw_length(128)
    piece = [random_slice(min(length, raw), seed=seed) for seed, length in enumerate(lengths)]
    for rng in map(np.random.default_rng, range(20)):
        sample = task.make_sample(piece, SampleContext(SPECIAL, rng, 128, True))
        task.batch_spec(128, document_mask=True).check(sample, maker=name)
        assert sample["document_ids"].max() == sample["decoder_document_ids"].max() >= min(3, len(lengths))
        assert (sample["labels"][sample["decoder_document_ids"] == 0] == IGNORED).all()


@pytest.mark.parametrize("name", [*NAMES, "span-corruption"])
def test_positions_restart_in_each_document(name):
    piece = [random_slice(length, seed=length) for length in (60, 1, 40)]
    sample = OBJECTIVES[name].make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 128, True))
    for prefix in ("", "decoder_"):
        positions = split_documents(sample, f"{prefix}positions", f"{prefix}document_ids")
        assert len(positions) == 3
        assert positions == [[*range(len(document))] for document in positions]


def test_token_corruption_is_invertible():
    for seed in range(30):
        for text, shown, target in make_sides("token-corruption", 90, 1, 20, seed=seed):
            assert fill_sentinels([*shown, END], [*target, END]) == text
            assert len(text) - sum(token not in SPECIAL.sentinels for token in shown) == max(1, round(0.15 * len(text)))
    # 17 of 111 tokens are hidden; adjacent hidden tokens share a sentinel.
    spans = [
        np.isin(make_sides("token-corruption", 111, seed=seed)[0][1], SPECIAL.sentinels).sum() for seed in range(200)
    ]
    assert np.mean(spans) == pytest.approx(17 * (1 - 16 / 110), abs=0.2)


def test_dropped_tokens_are_the_target():
    for text, shown, target in make_sides("dropped-tokens", 100, 20):
        assert Counter(shown) + Counter(target) == Counter(text)
        assert len(target) == round(0.15 * len(text))
        remaining = iter(text)
        assert all(token in remaining for token in target)  # in order


def test_prefix_length_is_uniform():
    prefix_lengths = []
    for seed in range(600):
        [(text, shown, target)] = make_sides("prefix-lm", 7, seed=seed)
        assert shown + target == text
        prefix_lengths.append(len(shown))
    assert all(count == pytest.approx(100, abs=35) for count in Counter(prefix_lengths).values())
    assert {*prefix_lengths} == {1, 2, 3, 4, 5, 6}
    assert make_sides("prefix-lm", 1)[0][1:] == ([random_slice(1).tokens[0]], [])


def test_deshuffling_target_is_the_text():
    [(text, shown, target)] = make_sides("deshuffling", 100)
    assert target == text != shown
    assert Counter(shown) == Counter(text)


@pytest.mark.parametrize(
    ("name", "mask_prob", "random_prob"),
    [("bert-style", 0.9, 0.1), ("mass-style", 1.0, 0.0), ("seq2seq-masked-lm", 0.8, 0.1)],
)
def test_masks_replace_tokens_one_by_one(name, mask_prob, random_prob):
    raw = masked = changed = 0
    for seed in range(400):
        [(text, shown, target)] = make_sides(name, 500, sequence=512, seed=seed)
        positions = np.flatnonzero(np.array(text) != shown)
        raw, masked, changed = raw + len(text), masked + shown.count(SPECIAL.mask), changed + len(positions)
        assert not {*np.array(shown)[positions]} & (SPECIAL.specials - {SPECIAL.mask})
        assert target == text if name.endswith("style") else len(target) == 75
    assert masked / raw == pytest.approx(0.15 * mask_prob, abs=0.003)
    assert (changed - masked) / raw == pytest.approx(0.15 * random_prob, abs=0.003)


def test_masked_text_predicts_hidden_tokens_only():
    """With `ask: hidden` the target is the hidden tokens in order. MASS hides half of the text as one span."""
    task = build_objective({"masked-text": {"mask_token_prob": 1.0, "random_token_prob": 0.0, "ask": "hidden"}})
    text = random_slice(40)
    sample = task.make_sample([text], SampleContext(SPECIAL, np.random.default_rng(0), 64, True))
    positions = np.flatnonzero(sample["tokens"] == SPECIAL.mask)
    assert split_documents(sample, "labels", "decoder_document_ids")[0][:-1] == text.tokens[positions].tolist()
    starts = set()
    for seed in range(200):
        [(tokens, _, target)] = make_sides("mass", 40, seed=seed)
        [start] = [start for start in range(21) if tokens[start : start + 20] == target]
        starts.add(start)
    assert starts == {*range(21)}


def test_first_sentinel_replaces_a_missing_mask_token():
    special = replace(SPECIAL, mask=None)
    sample = OBJECTIVES["mass-style"].make_sample(
        [random_slice(100)], SampleContext(special, np.random.default_rng(0), 128, True)
    )
    assert (sample["tokens"] == SPECIAL.sentinels[0]).sum() == 15


def test_invalid_configs_are_rejected():
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

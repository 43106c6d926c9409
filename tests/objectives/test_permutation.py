"""XLNet's samples: attention order (compared with masks of the released code), number of labels, spans, both
directions."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from megaptm.data import open_mix
from megaptm.data.mix import Mix
from megaptm.errors import UserError
from megaptm.families.xlnet.objectives import PermutationLM, attention_order, choose_spans
from megaptm.families.xlnet.stack import two_stream_mask
from megaptm.layers.mask import self_mask
from megaptm.objectives.objective import DocumentSlice, SampleContext
from tests.data.corpora import tiny_corpus, tiny_special

GOLDEN = np.load(Path(__file__).parents[1] / "golden/xlnet_masks.npz")
SPECIAL = tiny_special()
ORDINARY = 200


@pytest.mark.parametrize("case", [0, 1, 2])
def test_attention_order_equals_released_masks(case: int) -> None:
    """Our rule on positions gives the masks of `_local_perm` in the released code.

    Each mask is one call, on one half of a sequence. From it we reconstruct the order, then rebuild the mask of the
    content stream, in which each token attends to itself, and of the query stream.
    """
    hidden = GOLDEN[f"perm.{case}.perm_mask"] > 0
    special = np.isin(GOLDEN[f"perm.{case}.inputs"], (3, 4))
    targets = GOLDEN[f"perm.{case}.is_masked"].astype(bool) & ~special
    # Ordered tokens are hidden from earlier ones. A target is hidden from itself too, `sep` and `cls` are not.
    order = np.where(targets | special, 1 + hidden.sum(0) + special, 0)
    assert len({*order[order > 0].tolist()}) == (targets | special).sum()
    attended = ~hidden
    assert ((order[None, :] < order[:, None]) == attended)[targets].all()
    np.fill_diagonal(attended, True)
    assert ((order[None, :] <= order[:, None]) == attended).all()


def make_sample(
    sequence: int = 64, seed: int = 0, *, backward: bool = False, random_segment: bool = False, **options: object
) -> dict[str, np.ndarray]:
    """Return a sample of two documents, the second perhaps from another segment of the corpus."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(ORDINARY, 900, sequence - 5)
    words = np.flatnonzero(rng.random(len(tokens)) < 0.6)
    piece = [
        DocumentSlice(
            tokens[:20], slots=1, annotations={"words": words[words < 20]}, starts_lane=True, backward=backward
        ),
        DocumentSlice(tokens[20:], slots=1, annotations={"words": words[words >= 20] - 20}),
    ]
    if random_segment:
        other = np.arange(900, 900 + sequence - 4)
        piece.append(DocumentSlice(other, slots=1, annotations={"words": np.arange(len(other))}, other_segment=True))
    task = PermutationLM(**options)
    sample = task.make_sample(piece, SampleContext(SPECIAL, rng, sequence, False))
    task.batch_spec(sequence, False).check(sample, maker="test")
    return sample


def test_layout_of_two_segments() -> None:
    sample = make_sample()
    border = int(np.flatnonzero(sample["segments"] == 1)[0])
    assert border > 32
    assert sample["tokens"][[border - 1, -2, -1]].tolist() == [SPECIAL.sep, SPECIAL.sep, SPECIAL.cls]
    assert sample["segments"].tolist() == [0] * border + [1] * (63 - border) + [2]


@pytest.mark.parametrize("backward", [False, True])
def test_segments_end_at_sentence_boundaries(backward: bool) -> None:
    """Token ids rise. A sentence starts at each multiple of ten, so some start in the second half."""
    tokens, other_tokens = np.arange(ORDINARY, ORDINARY + 60), np.arange(505, 565)

    def with_sentences(tokens: np.ndarray, **options: bool) -> DocumentSlice:
        return DocumentSlice(tokens, 1, {"sentences": np.flatnonzero(tokens % 10 == 0)}, backward=backward, **options)

    for seed in range(10):
        context = SampleContext(SPECIAL, np.random.default_rng(seed), 64, False)
        task = PermutationLM(units="tokens", sentence_boundaries=True)
        for other_segment in (False, True):
            other = [with_sentences(other_tokens, other_segment=True)] if other_segment else []
            sample = task.make_sample([with_sentences(tokens), *other], context)["tokens"]
            border = int(np.flatnonzero(sample == SPECIAL.sep)[0])
            assert border > 32
            before, after = sample[border - 1], sample[border + 1]
            assert (before if backward else before + 1) % 10 == 0
            assert (after + 1 if backward else after) % 10 == 0
            assert (after > 500) == other_segment


@pytest.mark.parametrize(("sequence", "count"), [(512, 85), (64, 10), (128, 21)])
@pytest.mark.parametrize("units", ["words", "tokens"])
def test_one_of_six_positions_is_predicted(sequence: int, count: int, units: str) -> None:
    """Special tokens are never predicted; each half holds half of the targets."""
    for seed in range(5):
        sample = make_sample(sequence, seed, units=units)
        used = sample["labels"] != -100
        positions, labels = sample["masked_positions"][used], sample["labels"][used]
        assert len({*positions.tolist()}) == len(positions) == count
        assert (labels == sample["tokens"][positions]).all()
        assert not SPECIAL.is_special[labels].any()
        assert len(used) % 8 == 0, "tensor parallelism divides the sequence with its queries"
        assert (positions < sequence // 2).sum() == count - count // 2


@pytest.mark.parametrize("partial_k", [2, 6, 9])
def test_partial_k_sets_the_number_of_labels(partial_k: int) -> None:
    assert (make_sample(64, partial_k=partial_k)["labels"] != -100).sum() == 64 // partial_k


def test_attention_mask_of_both_streams() -> None:
    sample = make_sample()
    batch = {name: torch.from_numpy(value)[None] for name, value in sample.items()}
    dense = two_stream_mask(self_mask(batch, "", "ordered"), batch["masked_positions"])[0, 0].numpy()
    text, queries = dense[:64], dense[64:]
    is_target = np.zeros(64, dtype=bool)
    is_target[sample["masked_positions"][sample["labels"] != -100]] = True
    special = SPECIAL.is_special[sample["tokens"]]
    plain = ~is_target & ~special
    first = np.arange(64) < 32
    assert not text[np.ix_(first, ~first)].any(), "the first half does not attend to the second"
    assert text[np.ix_(~first, first)].all(), "the second half attends to all of the first, targets included"
    for half in (first, ~first):
        assert text[np.ix_(half & plain, half & plain)].all()
        assert not text[np.ix_(half & plain, half & ~plain)].any(), "other tokens attend to no target and no separator"
        assert text[np.ix_(half & ~plain, half & plain)].all()
    for query, position in enumerate(sample["masked_positions"]):
        assert not queries[query, position]
        assert (queries[query] == (sample["order"] < sample["order"][position])).all()


def test_each_half_has_its_own_permutation() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.permutation(8), rng.permutation(8)
    order = attention_order(np.ones(16, dtype=bool), first, second)
    assert order.tolist() == [*(1 + first), *(10 + second)]


def test_span_lengths_are_the_published_ones() -> None:
    """Compare with statistics of the released code, whose spans consist of tokens."""
    golden = json.loads(str(GOLDEN["statistics_json"]))
    runs, length = np.zeros(40), golden["length"]
    for seed in range(300):
        rng = np.random.default_rng(seed)
        chosen = choose_spans(np.ones(length, dtype=bool), np.ones(length, dtype=bool), golden["goal"], rng)
        assert chosen.sum() == golden["goal"]
        for run in "".join("x" if is_chosen else " " for is_chosen in chosen).split():
            runs[len(run)] += 1
    shares, expected = runs / runs.sum(), np.array(golden["run_lengths"]) / sum(golden["run_lengths"])
    assert np.abs(shares[:6] - expected[:6]).max() < 0.06


def test_spans_are_whole_words() -> None:
    rng = np.random.default_rng(1)
    starts = np.zeros(300, dtype=bool)
    starts[::3] = True
    chosen = choose_spans(starts, np.ones(300, dtype=bool), 30, rng)
    words = chosen.reshape(100, 3).sum(1)
    assert (words == 3).sum() >= 8
    assert chosen.sum() == 30


def test_backward_sample_is_reversed() -> None:
    forward, backward = make_sample(seed=3), make_sample(seed=3, backward=True)
    text = [token for token in forward["tokens"].tolist() if token not in (SPECIAL.sep, SPECIAL.cls)]
    other = [token for token in backward["tokens"].tolist() if token not in (SPECIAL.sep, SPECIAL.cls)]
    assert other == text[::-1]
    assert int(forward["backward"]) == 0
    assert int(backward["backward"]) == 1


@pytest.mark.parametrize("backward", [False, True])
def test_random_segment_replaces_the_second_segment(backward: bool) -> None:
    for seed in range(5):
        usual, sample = (
            make_sample(seed=seed, backward=backward),
            make_sample(seed=seed, backward=backward, random_segment=True),
        )
        assert sample["segments"].tolist() == usual["segments"].tolist()
        first = sample["segments"] == 0
        assert sample["tokens"][first].tolist() == usual["tokens"][first].tolist()
        second = sample["tokens"][~first][:-2].tolist()
        other = [*range(900, 900 + 60), SPECIAL.end]
        assert second == (other[::-1] if backward else other)[: len(second)]


def open_lanes(folder: Path, **options: object) -> Mix:
    tiny_corpus(folder, documents=80)
    settings = {"sequence": 32, "seed": 3, "special": SPECIAL, "document_mask": False}
    return open_mix({str(folder): 1.0}, objective=PermutationLM(**options), **settings, lanes=4)


def test_random_segment_prob(tmp_path: Path) -> None:
    """It comes from another position of the same shard, and never overlaps the continued segment."""
    order = open_lanes(tmp_path / "corpus", random_segment_prob=0.5).orders[0]
    has_random_segment = []
    for epoch in range(6):
        for position in range(order.per_epoch):
            continued, random_segment = (
                [part.tokens.tolist() for part in order.piece(epoch, position) if part.other_segment == other]
                for other in (False, True)
            )
            has_random_segment.append(bool(random_segment))
            # Tokens are random, so the same three in a row hardly occur twice in the corpus.
            trigrams = [
                {tuple(part[start : start + 3]) for part in parts for start in range(len(part) - 2)}
                for parts in (continued, random_segment)
            ]
            assert not trigrams[0] & trigrams[1]
    assert np.mean(has_random_segment) == pytest.approx(0.5, abs=0.06)
    assert not any(
        part.other_segment for part in open_lanes(tmp_path / "corpus", random_segment_prob=0).orders[0].piece(0, 0)
    )


def test_samples_continue_in_both_directions(tmp_path: Path) -> None:
    mix = open_lanes(tmp_path / "corpus", random_segment_prob=0)
    steps = mix.orders[0].per_epoch // 4
    assert steps > 3
    for lane in range(4):
        samples = [mix.sample(step * 4 + lane) for step in range(steps)]
        assert {int(sample["backward"]) for sample in samples} == {lane % 2}
        assert [int(sample["reset_state"]) for sample in samples] == [1, *[0] * (steps - 1)]
        for before, after in pairwise(samples):
            second_half = [token for token in before["tokens"][16:].tolist() if token not in (SPECIAL.sep, SPECIAL.cls)]
            # The next sample continues with the second half of this one.
            assert second_half[:13] == after["tokens"][:13].tolist()


def test_invalid_sequences_are_rejected() -> None:
    with pytest.raises(
        UserError,
        match=r"data\.sequence \(33\) must be even and at least 16: the recurrence cache holds the first half of",
    ):
        PermutationLM().check(SPECIAL, 33)
    with pytest.raises(UserError, match=r"data\.document_mask=false"):
        PermutationLM().batch_spec(32, True)

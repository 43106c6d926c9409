"""XLNet's rows: who sees whom as in the released code's golden masks, how many are asked, spans, both directions."""

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
from megaptm.families import CATALOGUE
from megaptm.layers.mask import self_mask
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.permutation import PermutationLM, attention_order, choose_spans
from tests.data.corpora import tiny_corpus, tiny_special

GOLDEN = np.load(Path(__file__).parents[1] / "golden/xlnet_masks.npz")
SPECIAL = tiny_special()
ORDINARY = 200


@pytest.mark.parametrize("case", [0, 1, 2])
def test_an_order_says_what_a_golden_mask_says(case: int) -> None:
    """Of one call of the released code's `_local_perm`, whose chunks follow each other: an order is found that our rule
    turns into its mask, of the text, which always sees itself, and of queries."""
    hidden = GOLDEN[f"perm.{case}.perm_mask"] > 0
    special = np.isin(GOLDEN[f"perm.{case}.inputs"], (3, 4))
    targets = GOLDEN[f"perm.{case}.is_masked"].astype(bool) & ~special
    # What is ordered is hidden from what is before it; a target from itself as well, `sep` and `cls` are not.
    order = np.where(targets | special, 1 + hidden.sum(0) + special, 0)
    assert len({*order[order > 0].tolist()}) == (targets | special).sum()
    seen = ~hidden
    assert ((order[None, :] < order[:, None]) == seen)[targets].all()
    np.fill_diagonal(seen, True)
    assert ((order[None, :] <= order[:, None]) == seen).all()


def row(
    sequence: int = 64, seed: int = 0, *, backward: bool = False, random_segment: bool = False, **options: object
) -> dict[str, np.ndarray]:
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
        others = np.arange(900, 900 + sequence - 4)
        piece.append(DocumentSlice(others, slots=1, annotations={"words": np.arange(len(others))}, other_segment=True))
    task = PermutationLM(**options)
    made = task.make(piece, SampleContext(SPECIAL, rng, sequence, False))
    task.batch(sequence, False).check(made, maker="test")
    return made


def test_a_row_is_text_that_goes_on_and_two_texts() -> None:
    made = row()
    border = int(np.flatnonzero(made["segments"] == 1)[0])
    assert border > 32
    assert made["tokens"][[border - 1, -2, -1]].tolist() == [SPECIAL.sep, SPECIAL.sep, SPECIAL.cls]
    assert made["segments"].tolist() == [0] * border + [1] * (63 - border) + [2]


@pytest.mark.parametrize("backward", [False, True])
def test_a_text_ends_with_a_sentence(backward: bool) -> None:
    """Tokens rise; sentences begin where they are a multiple of ten, which some behind the first half are."""
    tokens, others = np.arange(ORDINARY, ORDINARY + 60), np.arange(505, 565)

    def piece(tokens: np.ndarray, **where: bool) -> DocumentSlice:
        return DocumentSlice(tokens, 1, {"sentences": np.flatnonzero(tokens % 10 == 0)}, backward=backward, **where)

    for seed in range(10):
        context = SampleContext(SPECIAL, np.random.default_rng(seed), 64, False)
        task = PermutationLM(units="tokens", sentence_boundaries=True)
        for elsewhere in (False, True):
            parts = [piece(tokens), *([piece(others, other_segment=True)] if elsewhere else [])]
            made = task.make(parts, context)["tokens"]
            border = int(np.flatnonzero(made == SPECIAL.sep)[0])
            assert border > 32
            before, after = made[border - 1], made[border + 1]
            assert (before if backward else before + 1) % 10 == 0
            assert (after + 1 if backward else after) % 10 == 0
            assert (after > 500) == elsewhere


@pytest.mark.parametrize(("sequence", "count"), [(512, 85), (64, 10), (128, 21)])
@pytest.mark.parametrize("units", ["words", "tokens"])
def test_one_place_of_six_is_asked_and_never_a_special_one(sequence: int, count: int, units: str) -> None:
    for seed in range(5):
        made = row(sequence, seed, units=units)
        used = made["labels"] != -100
        places, labels = made["masked_positions"][used], made["labels"][used]
        assert len({*places.tolist()}) == len(places) == count
        assert (labels == made["tokens"][places]).all()
        assert not SPECIAL.is_special[labels].any()
        assert len(used) % 8 == 0, "so that tensor ranks can divide a row with its queries"
        assert (places < sequence // 2).sum() == count - count // 2


@pytest.mark.parametrize("partial", [2, 6, 9])
def test_the_share_that_is_asked_is_an_option(partial: int) -> None:
    assert (row(64, partial_k=partial)["labels"] != -100).sum() == 64 // partial


def test_who_sees_whom() -> None:
    made = row()
    batch = {name: torch.from_numpy(value)[None] for name, value in made.items()}
    dense = self_mask(batch, "", "ordered", block=CATALOGUE["xlnet"].last_block).dense[0, 0].numpy()
    text, queries = dense[:64], dense[64:]
    asked = np.zeros(64, dtype=bool)
    asked[made["masked_positions"][made["labels"] != -100]] = True
    special = SPECIAL.is_special[made["tokens"]]
    plain = ~asked & ~special
    first = np.arange(64) < 32
    assert not text[np.ix_(first, ~first)].any(), "the first half sees nothing of the second"
    assert text[np.ix_(~first, first)].all(), "the second sees all of the first, what was asked too"
    for half in (first, ~first):
        assert text[np.ix_(half & plain, half & plain)].all()
        assert not text[np.ix_(half & plain, half & ~plain)].any(), "what is not asked sees no target, and no sep"
        assert text[np.ix_(half & ~plain, half & plain)].all()
    for number, place in enumerate(made["masked_positions"]):
        assert not queries[number, place]
        assert (queries[number] == (made["order"] < made["order"][place])).all()


def test_each_half_has_a_permutation_of_its_own() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.permutation(8), rng.permutation(8)
    order = attention_order(np.ones(16, dtype=bool), first, second)
    assert order.tolist() == [*(1 + first), *(10 + second)]


def test_spans_are_as_long_as_published() -> None:
    """By the golden statistics of the released code, whose spans are of tokens."""
    golden = json.loads(str(GOLDEN["statistics_json"]))
    runs, length = np.zeros(40), golden["length"]
    for seed in range(300):
        rng = np.random.default_rng(seed)
        chosen = choose_spans(np.ones(length, dtype=bool), np.ones(length, dtype=bool), golden["goal"], rng)
        assert chosen.sum() == golden["goal"]
        for run in "".join("x" if one else " " for one in chosen).split():
            runs[len(run)] += 1
    ours, theirs = runs / runs.sum(), np.array(golden["run_lengths"]) / sum(golden["run_lengths"])
    assert np.abs(ours[:6] - theirs[:6]).max() < 0.06


def test_spans_are_of_whole_words() -> None:
    rng = np.random.default_rng(1)
    begins = np.zeros(300, dtype=bool)
    begins[::3] = True
    chosen = choose_spans(begins, np.ones(300, dtype=bool), 30, rng)
    words = chosen.reshape(100, 3).sum(1)
    assert (words == 3).sum() >= 8
    assert chosen.sum() == 30


def test_a_row_from_the_end_is_the_text_reversed() -> None:
    made, backward = row(seed=3), row(seed=3, backward=True)
    text = [token for token in made["tokens"].tolist() if token not in (SPECIAL.sep, SPECIAL.cls)]
    other = [token for token in backward["tokens"].tolist() if token not in (SPECIAL.sep, SPECIAL.cls)]
    assert other == text[::-1]
    assert (int(made["backward"]), int(backward["backward"])) == (0, 1)


@pytest.mark.parametrize("backward", [False, True])
def test_a_second_text_from_elsewhere_stands_where_what_follows_would(backward: bool) -> None:
    for seed in range(5):
        usual, made = row(seed=seed, backward=backward), row(seed=seed, backward=backward, random_segment=True)
        assert made["segments"].tolist() == usual["segments"].tolist()
        first = made["segments"] == 0
        assert made["tokens"][first].tolist() == usual["tokens"][first].tolist()
        second = made["tokens"][~first][:-2].tolist()
        there = [*range(900, 900 + 60), SPECIAL.end]
        assert second == (there[::-1] if backward else there)[: len(second)]


def opened(folder: Path, **options: object) -> Mix:
    tiny_corpus(folder, documents=80)
    given = {"sequence": 32, "seed": 3, "special": SPECIAL, "document_mask": False}
    return open_mix({str(folder): 1.0}, objective=PermutationLM(**options), **given, lanes=4)


def test_half_of_the_rows_have_a_second_text_from_elsewhere(tmp_path: Path) -> None:
    """Of another place of the same shard; what goes on where the row before ended is never part of it."""
    order = opened(tmp_path / "corpus", random_segment_prob=0.5).orders[0]
    drawn = []
    for epoch in range(6):
        for position in range(order.per_epoch):
            mine, theirs = (
                [part.tokens.tolist() for part in order.piece(epoch, position) if part.other_segment == other]
                for other in (False, True)
            )
            drawn.append(bool(theirs))
            # Tokens are drawn at random, so that three in a row are hardly twice in the corpus.
            threes = [
                {tuple(one[at : at + 3]) for one in parts for at in range(len(one) - 2)} for parts in (mine, theirs)
            ]
            assert not threes[0] & threes[1]
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.06)
    assert not any(
        part.other_segment for part in opened(tmp_path / "corpus", random_segment_prob=0).orders[0].piece(0, 0)
    )


def test_rows_go_on_in_both_directions(tmp_path: Path) -> None:
    mix = opened(tmp_path / "corpus", random_segment_prob=0)
    steps = mix.orders[0].per_epoch // 4
    assert steps > 3
    for lane in range(4):
        read = [mix.sample(step * 4 + lane) for step in range(steps)]
        assert {int(one["backward"]) for one in read} == {lane % 2}
        assert [int(one["reset_state"]) for one in read] == [1, *[0] * (steps - 1)]
        for before, after in pairwise(read):
            rest = [token for token in before["tokens"][16:].tolist() if token not in (SPECIAL.sep, SPECIAL.cls)]
            # What comes next was the texts behind this row's half.
            assert rest[:13] == after["tokens"][:13].tolist()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        UserError,
        match=r"data\.sequence \(33\) must be even and at least 16: the recurrence cache holds the first half of",
    ):
        PermutationLM().check(SPECIAL, 33)
    with pytest.raises(UserError, match=r"data\.document_mask=false"):
        PermutationLM().batch(32, True)

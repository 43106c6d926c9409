import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.corpus.selection import EVERY, HELD, MOST_HELD, Selection, hash_bound, select, shards_of

TEXTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=40, unique=True)


@dataclass
class Part:
    digests: np.ndarray
    sizes: np.ndarray


def parts_of(*parts: list[str]) -> list[Part]:
    def part(texts: list[str]) -> Part:
        digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
        sizes = np.array([len(text.encode()) for text in texts], dtype=np.int64)
        return Part(np.frombuffer(digests, dtype="<u8").reshape(-1, 2), sizes)

    return [part(texts) for texts in parts]


def chosen(*parts: list[str], validation: float = 0.0, seed: int = 0, limit: int | None = None) -> Selection:
    made = parts_of(*parts)
    everything = [np.ones(len(part.sizes), dtype=bool) for part in made]
    return select(made, everything.__getitem__, validation=validation, seed=seed, limit_bytes=limit)


def texts_of(places, *parts: list[str]) -> list[str]:
    return [parts[number][row] for number, rows in places for row in rows]


def test_what_does_not_stay_is_in_no_split():
    parts = (["a", "b", "c"], ["d"])
    stays = [np.array([True, False, True]), np.array([False])]
    selection = select(parts_of(*parts), stays.__getitem__, validation=0.5, seed=0)
    kept = [text for split in ("train", "validation") for text in texts_of(selection.places(split), *parts)]
    assert sorted(kept) == ["a", "c"]


@given(texts=TEXTS, seed=st.integers(0, 5), validation=st.sampled_from([0.02, 0.3, 0.99]), cut=st.integers(0, 40))
def test_splits_share_no_text_and_lose_none_and_both_have_some_where_that_can_be(texts, seed, validation, cut):
    parts = (texts[:cut], texts[cut:])
    selection = chosen(*parts, validation=validation, seed=seed)
    train, held_out = (set(texts_of(selection.places(split), *parts)) for split in ("train", "validation"))
    assert train | held_out == set(texts)
    assert not train & held_out
    assert train
    assert held_out or len(texts) == 1


def test_a_document_keeps_its_split_when_others_join_and_the_seed_moves_it():
    def held_out(texts, seed):
        return set(texts_of(chosen(texts, validation=0.2, seed=seed).places("validation"), texts))

    texts = [f"document {number}" for number in range(300)]
    few, more, other = held_out(texts[:200], 0), held_out(texts, 0), held_out(texts, 1)
    assert few == {text for text in more if text in texts[:200]}
    assert 30 < len(more) < 90  # 60 expected, standard deviation 7
    assert more != other


@given(texts=TEXTS, cut=st.integers(0, 40))
def test_little_text_gives_a_fifth_unless_a_share_is_given_and_one_document_fewer_would_be_less(texts, cut):
    parts = parts_of(texts[:cut], texts[cut:])
    stays = [np.ones(len(part.sizes), dtype=bool) for part in parts]
    selection = select(parts, stays.__getitem__, seed=0)
    held = [(number, row) for number, rows in selection.places("validation") for row in rows]
    sizes = [int(parts[number].sizes[row]) for number, row in held]
    wanted = int(MOST_HELD * sum(int(part.sizes.sum()) for part in parts))
    assert sum(sizes) >= wanted or len(held) == len(texts) - 1
    draws = [int(parts[number].digests[row, 1] ^ selection.salt) for number, row in held]
    # But for a document that is among the 0.02 of all.
    if len(held) > 1 and max(draws) >= int(HELD * EVERY):
        assert sum(sizes) - sizes[int(np.argmax(draws))] < wanted


def test_the_share_that_is_asked_for_some_text_holds_it_out():
    texts = [f"document {number}" * (1 + number % 7) for number in range(50)]
    share = chosen(texts).share_of(700)
    assert sum(map(len, texts_of(chosen(texts, validation=share).places("validation"), texts))) >= 700
    assert sum(map(len, texts_of(chosen(texts, validation=share - 1e-6).places("validation"), texts))) < 700


def test_nothing_is_held_out_when_nothing_is_asked():
    assert list(chosen(["a", "b"]).places("validation")) == []


@given(texts=TEXTS, limit=st.integers(1, 200), cut=st.integers(0, 40))
def test_a_limit_is_kept_and_does_not_depend_on_the_order_of_documents(texts, limit, cut):
    parts, backward = (texts[:cut], texts[cut:]), texts[::-1]
    kept = texts_of(chosen(*parts, limit=limit).places("train"), *parts)
    assert set(kept) == set(texts_of(chosen(backward, limit=limit).places("train"), backward))
    total = sum(len(text.encode()) for text in kept)
    assert len(kept) == 1 or total <= limit
    # The one that comes next would have been too much.
    rest = sorted(
        set(texts) - set(kept), key=lambda text: hashlib.blake2b(text.encode(), digest_size=16).digest()[7::-1]
    )
    assert not rest or total + len(rest[0].encode()) > limit


def test_equal_texts_are_within_a_limit_together_or_one_by_one_never_none():
    assert len(texts_of(chosen(["aa"] * 5, limit=4).places("train"), ["aa"] * 5)) == 5
    assert hash_bound(lambda: iter([(np.array([7], np.uint64), np.array([5]))]), 5) == EVERY


def test_a_sample_of_a_split_stays_in_it():
    texts = [f"document {number}" for number in range(50)]
    selection = chosen(texts, validation=0.3)
    sample, split = (
        set(texts_of(places, texts)) for places in (selection.sample("train", 60), selection.places("train"))
    )
    assert sample < split
    assert 1 <= len(sample) <= 5


@pytest.mark.parametrize("cut", [0, 1, 3])
@given(texts=TEXTS, size=st.integers(1, 60))
def test_shards_hold_every_row_in_order_and_begin_in_different_stretches_of_text(cut, texts, size):
    parts = (texts[:cut], texts[cut:])
    made = parts_of(*parts)
    shards = list(shards_of(chosen(*parts).places("train"), made, size))
    assert [text for shard in shards for text in texts_of(shard, *parts)] == texts
    sizes = np.concatenate([part.sizes for part in made])
    stretch_of = dict(zip(texts, ((np.cumsum(sizes) - sizes) // size).tolist(), strict=True))
    stretches = [{stretch_of[text] for text in texts_of(shard, *parts)} for shard in shards]
    assert all(len(stretch) == 1 for stretch in stretches)
    assert len(set.union(*stretches)) == len(shards)

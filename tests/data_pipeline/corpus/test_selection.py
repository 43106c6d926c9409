import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.corpus.selection import (
    HASH_LIMIT,
    MAX_VALIDATION_SHARE,
    VALIDATION_SHARE,
    Selection,
    divide_into_shards,
    max_bound,
    select_rows,
)

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
    return select_rows(made, everything.__getitem__, validation=validation, seed=seed, limit_bytes=limit)


def texts_of(offsets, *parts: list[str]) -> list[str]:
    return [parts[number][row] for number, rows in offsets for row in rows]


def test_dropped_documents_are_in_no_split():
    parts = (["a", "b", "c"], ["d"])
    stays = [np.array([True, False, True]), np.array([False])]
    selection = select_rows(parts_of(*parts), stays.__getitem__, validation=0.5, seed=0)
    retained = [text for split in ("train", "validation") for text in texts_of(selection.rows_by_part(split), *parts)]
    assert sorted(retained) == ["a", "c"]


@given(texts=TEXTS, seed=st.integers(0, 5), validation=st.sampled_from([0.02, 0.3, 0.99]), cut=st.integers(0, 40))
def test_splits_partition_documents(texts, seed, validation, cut):
    parts = (texts[:cut], texts[cut:])
    selection = chosen(*parts, validation=validation, seed=seed)
    train, held_out = (set(texts_of(selection.rows_by_part(split), *parts)) for split in ("train", "validation"))
    assert train | held_out == set(texts)
    assert not train & held_out
    assert train
    assert held_out or len(texts) == 1


def test_split_depends_on_text_and_seed_only():
    def held_out(texts, seed):
        return set(texts_of(chosen(texts, validation=0.2, seed=seed).rows_by_part("validation"), texts))

    texts = [f"document {number}" for number in range(300)]
    few, more, other = held_out(texts[:200], 0), held_out(texts, 0), held_out(texts, 1)
    assert few == {text for text in more if text in texts[:200]}
    assert 30 < len(more) < 90  # 60 expected, standard deviation 7
    assert more != other


@given(texts=TEXTS, cut=st.integers(0, 40))
def test_small_corpus_validation_size(texts, cut):
    parts = parts_of(texts[:cut], texts[cut:])
    stays = [np.ones(len(part.sizes), dtype=bool) for part in parts]
    selection = select_rows(parts, stays.__getitem__, seed=0)
    held = [(number, row) for number, rows in selection.rows_by_part("validation") for row in rows]
    sizes = [int(parts[number].sizes[row]) for number, row in held]
    all_sizes = [int(size) for part in parts for size in part.sizes]
    has_giant = 2 * max(all_sizes) > sum(all_sizes)
    expected = int(MAX_VALIDATION_SHARE * (sum(all_sizes) - (max(all_sizes) if has_giant else 0)))
    assert sum(sizes) >= expected or len(held) == len(texts) - 1
    draws = [int(parts[number].digests[row, 1] ^ selection.salt) for number, row in held]
    # Except for a document that is among the 0.02 of all.
    if len(held) > 1 and max(draws) >= int(VALIDATION_SHARE * HASH_LIMIT):
        assert sum(sizes) - sizes[int(np.argmax(draws))] < expected


def test_share_of_holds_out_requested_bytes():
    texts = [f"document {number}" * (1 + number % 7) for number in range(50)]
    share = chosen(texts).share_of(700)
    assert sum(map(len, texts_of(chosen(texts, validation=share).rows_by_part("validation"), texts))) >= 700
    assert sum(map(len, texts_of(chosen(texts, validation=share - 1e-6).rows_by_part("validation"), texts))) < 700


def test_zero_validation_holds_out_nothing():
    assert list(chosen(["a", "b"]).rows_by_part("validation")) == []


@given(texts=TEXTS, limit=st.integers(1, 200), cut=st.integers(0, 40))
def test_limit_does_not_depend_on_order(texts, limit, cut):
    parts, backward = (texts[:cut], texts[cut:]), texts[::-1]
    retained = texts_of(chosen(*parts, limit=limit).rows_by_part("train"), *parts)
    assert set(retained) == set(texts_of(chosen(backward, limit=limit).rows_by_part("train"), backward))
    total = sum(len(text.encode()) for text in retained)
    assert len(retained) == 1 or total <= limit
    # The next document would have exceeded the limit.
    remaining = sorted(
        set(texts) - set(retained), key=lambda text: hashlib.blake2b(text.encode(), digest_size=16).digest()[7::-1]
    )
    assert not remaining or total + len(remaining[0].encode()) > limit


def test_limit_with_equal_texts():
    assert len(texts_of(chosen(["aa"] * 5, limit=4).rows_by_part("train"), ["aa"] * 5)) == 5
    assert max_bound(lambda: iter([(np.array([7], np.uint64), np.array([5]))]), 5) == HASH_LIMIT


def test_sample_is_subset_of_split():
    texts = [f"document {number}" for number in range(50)]
    selection = chosen(texts, validation=0.3)
    sample, split = (
        set(texts_of(offsets, texts)) for offsets in (selection.sample("train", 60), selection.rows_by_part("train"))
    )
    assert sample < split
    assert 1 <= len(sample) <= 5


@pytest.mark.parametrize("cut", [0, 1, 3])
@given(texts=TEXTS, size=st.integers(1, 60))
def test_shards_partition_rows_in_order(cut, texts, size):
    parts = (texts[:cut], texts[cut:])
    made = parts_of(*parts)
    shards = list(divide_into_shards(chosen(*parts).rows_by_part("train"), made, size))
    assert [text for shard in shards for text in texts_of(shard, *parts)] == texts
    sizes = np.concatenate([part.sizes for part in made])
    stretch_of = dict(zip(texts, ((np.cumsum(sizes) - sizes) // size).tolist(), strict=True))
    stretches = [{stretch_of[text] for text in texts_of(shard, *parts)} for shard in shards]
    assert all(len(stretch) == 1 for stretch in stretches)
    assert len(set.union(*stretches)) == len(shards)

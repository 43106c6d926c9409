import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.build.parts import Part
from data_pipeline.build.selection import Table, select, shards_of, smallest_hashes
from data_pipeline.document import Dropped

TEXTS = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=40)


def table_of(*parts: list[str]) -> Table:
    def part(number: int, texts: list[str]) -> Part:
        digests = b"".join(hashlib.blake2b(text.encode(), digest_size=16).digest() for text in texts)
        sizes = np.array([len(text.encode()) for text in texts], dtype=np.int64)
        table = np.frombuffer(digests, dtype="<u8").reshape(-1, 2)
        return Part(f"part {number}", table, sizes, np.arange(len(texts), dtype=np.int64) * 100, Dropped())

    return Table([part(number, texts) for number, texts in enumerate(parts)])


def texts_of(rows: np.ndarray, texts: list[str]) -> set[str]:
    return {texts[row] for row in rows}


def test_the_first_of_equal_documents_stays():
    chosen = select(table_of(["a", "b", "a"], ["b", "c"]), validation=0, seed=0)
    assert chosen.splits["train"].tolist() == [0, 1, 4]
    assert chosen.duplicates == 2


@given(texts=TEXTS, seed=st.integers(0, 5), validation=st.sampled_from([0.02, 0.3, 0.99]))
def test_splits_share_no_text_and_lose_none_and_both_have_some_where_that_can_be(texts, seed, validation):
    splits = select(table_of(texts), validation=validation, seed=seed).splits
    train, held_out = (texts_of(splits[name], texts) for name in ("train", "validation"))
    assert train | held_out == set(texts)
    assert not train & held_out
    assert train
    assert held_out or len(set(texts)) == 1


def test_a_document_keeps_its_split_when_others_join_and_the_seed_moves_it():
    texts = [f"document {number}" for number in range(300)]
    few = texts_of(select(table_of(texts[:200]), validation=0.2, seed=0).splits["validation"], texts)
    more = texts_of(select(table_of(texts), validation=0.2, seed=0).splits["validation"], texts)
    other = texts_of(select(table_of(texts), validation=0.2, seed=1).splits["validation"], texts)
    assert few == {text for text in more if text in texts[:200]}
    assert 30 < len(more) < 90  # 60 expected, standard deviation 7
    assert more != other


def test_nothing_is_held_out_when_nothing_is_asked():
    assert len(select(table_of(["a", "b"]), validation=0, seed=0).splits["validation"]) == 0


@given(texts=TEXTS, limit=st.integers(1, 200))
def test_a_limit_is_kept_and_does_not_depend_on_the_order_of_documents(texts, limit):
    texts = sorted(set(texts))
    chosen = select(table_of(texts), validation=0, seed=0, limit_bytes=limit)
    backward = select(table_of(texts[::-1]), validation=0, seed=0, limit_bytes=limit)
    kept = texts_of(chosen.splits["train"], texts)
    assert kept == texts_of(backward.splits["train"], texts[::-1])
    assert len(kept) == 1 or sum(len(text.encode()) for text in kept) <= limit
    assert chosen.beyond_limit == len(texts) - len(kept)


def test_a_sample_of_a_split_stays_in_it():
    table = table_of([f"document {number}" for number in range(50)])
    rows = np.arange(0, 50, 3)
    assert set(smallest_hashes(table, rows, 60)) < set(rows)


@given(texts=TEXTS, size=st.integers(1, 60))
def test_shards_hold_every_row_in_order_and_begin_in_different_stretches_of_text(texts, size):
    table = table_of(texts)
    rows = np.arange(len(texts))
    shards = shards_of(table, rows, size)
    assert np.concatenate(shards).tolist() == rows.tolist()
    begins = np.cumsum(table.sizes) - table.sizes
    stretches = [set((begins[shard] // size).tolist()) for shard in shards]
    assert all(len(stretch) == 1 for stretch in stretches)
    assert len(set.union(*stretches)) == len(shards)


def test_places_lead_rows_back_to_their_parts():
    table = table_of(["a", "b"], [], ["c", "d", "e"])
    places = [(path, offsets.tolist()) for path, offsets in table.places(np.array([1, 2, 4]))]
    assert places == [("part 0", [100]), ("part 2", [0, 200])]

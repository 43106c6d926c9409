"""The order of an epoch: everything once, shuffled, and any position by itself."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megaptm.data.sentence_group_order import SentenceGroupOrder
from megaptm.data.shards import Corpus
from megaptm.data.stream_order import StreamOrder
from megaptm.errors import UserError
from megaptm.objectives.objective import SequenceWindow
from tests.data.corpora import tiny_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    tiny_corpus(folder, documents=50, shards=5, vocabulary=60_000, lengths=(1, 90))
    return Corpus.open(folder)


def stream(corpus, cut, seed=0, window=2):
    return StreamOrder(corpus, "train", cut=cut, seed=seed, window=window)


def documents(corpus):
    return sorted(tokens.tolist() for tokens in corpus.documents("train"))


def laid_out(order, epoch=0):
    """The stream of an epoch: the places of its rows, put back in the order they were cut in. -1 is a slot."""
    rows = {order._find(epoch, position)[1]: order.piece(epoch, position) for position in range(order.per_epoch)}
    assert sorted(rows) == list(range(order.per_epoch))
    return [
        [place for part in rows[row] for place in [*part.tokens.tolist(), *[-1] * part.slots]] for row in sorted(rows)
    ]


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("slots", [0, 1, 2])
def test_an_epoch_holds_every_token_once_but_for_a_tail_shorter_than_a_row(corpus, window, slots):
    places = Counter(
        place
        for row in laid_out(stream(corpus, SequenceWindow(stride=16, slots=slots), window=window))
        for place in row
    )
    everything = Counter(token for document in documents(corpus) for token in document)
    everything[-1] = slots * len(documents(corpus))
    assert not places - everything
    assert (everything - places).total() == everything.total() % 16


@pytest.mark.parametrize("window", [1, 2, 8])
def test_documents_lie_end_to_end_each_with_its_slot(corpus, window):
    rows = laid_out(stream(corpus, SequenceWindow(stride=16, slots=1), window=window))
    ends = " ".join(str(place) for row in rows for place in row).split(" -1")
    found = [[int(token) for token in document.split()] for document in ends[:-1]]
    assert all(document in documents(corpus) for document in found)
    assert len(found) > 50 - 16


def test_rows_overlap_by_the_lookahead_only(corpus):
    rows = laid_out(stream(corpus, SequenceWindow(stride=16, lookahead=1, slots=1)))
    assert {len(row) for row in rows} == {17}
    assert all(before[-1] == after[0] for before, after in pairwise(rows))


def test_any_position_alone_equals_reading_through(corpus):
    cut = SequenceWindow(stride=16, lookahead=1, slots=1)
    order = stream(corpus, cut)
    sequential = [order.piece(epoch, position) for epoch in (0, 1) for position in range(order.per_epoch)]
    for number in np.random.default_rng(0).permutation(len(sequential))[:40].tolist():
        alone = stream(corpus, cut).piece(*divmod(number, order.per_epoch))
        assert [(p.tokens.tolist(), p.slots) for p in alone] == [
            (p.tokens.tolist(), p.slots) for p in sequential[number]
        ]


def test_epochs_and_seeds_differ(corpus):
    def texts(seed, epoch):
        order = stream(corpus, SequenceWindow(stride=16), seed=seed)
        return [
            [t for part in order.piece(epoch, position) for t in part.tokens.tolist()]
            for position in range(order.per_epoch)
        ]

    first = texts(0, 0)
    assert first == texts(0, 0)
    for other in (texts(0, 1), texts(1, 0)):
        assert sum(row in first for row in other) < len(first) / 2


def test_only_touched_shards_are_opened(corpus):
    order = stream(corpus, SequenceWindow(stride=16), window=1)
    order.piece(0, 0)
    assert order.shards._checked[:].count(1) <= 2


def test_a_long_document_does_not_come_in_one_piece(tmp_path):
    tiny_corpus(tmp_path, documents=2, shards=1, lengths=(2000, 2000))
    order = stream(Corpus.open(tmp_path), SequenceWindow(stride=20))
    rows = [order._find(0, position)[1] for position in range(order.per_epoch)]
    assert np.mean(np.diff(rows) == 1) < 0.05


def test_text_shorter_than_a_row_is_refused(corpus):
    with pytest.raises(
        UserError,
        match=r"has 2,261 tokens in its split `train`, less than one sequence of 1000000: lower data\.sequence",
    ):
        stream(corpus, SequenceWindow(stride=1_000_000))


def pairs(corpus, length=16, window=2, split="train"):
    return SentenceGroupOrder(corpus, split, length=length, seed=0, window=window)


@pytest.mark.parametrize("window", [1, 8])
def test_chunks_divide_each_document(corpus, window):
    order = pairs(corpus, window=window)
    rebuilt: dict[tuple[int, int], dict[int, list[int]]] = {}
    for position in range(order.per_epoch):
        at, sample = order._find(0, position)
        table = order._window((0, at))
        sample -= int(order._epoch(0).samples[at])
        number = int(np.searchsorted(table.edges, sample, side="right")) - 1
        document = (int(table.shard[number]), int(table.document[number]))
        tokens = [token for sentence in order.piece(0, position).sentences for token in sentence.tolist()]
        chunks = rebuilt.setdefault(document, {})
        assert chunks.setdefault(sample - int(table.edges[number]), tokens) is tokens
    whole = [[token for chunk in sorted(chunks) for token in chunks[chunk]] for chunks in rebuilt.values()]
    assert sorted(whole) == documents(corpus)
    assert order.per_epoch == sum(max(1, -(-len(document) // 16)) for document in documents(corpus))


@settings(deadline=None, max_examples=30)
@given(position=st.integers(0, 50), seed=st.integers(0, 1000))
def test_the_other_text_is_another_document(corpus, position, seed):
    order = pairs(corpus)
    chunk = order.piece(0, position)
    other = [
        token for sentence in chunk.sample_other_document(np.random.default_rng(seed)) for token in sentence.tolist()
    ]
    own = np.concatenate(chunk.sentences).tolist()
    everything = documents(corpus)
    ends_so = [number for number, document in enumerate(everything) if document[-len(other) :] == other]
    holds_own = [
        number
        for number, document in enumerate(everything)
        if any(document[at : at + len(own)] == own for at in range(len(document)))
    ]
    # Drawn from 60,000 ids, a stretch of text tells its document; but one of a token or two may occur in another.
    assume(len(ends_so) == len(holds_own) == 1)
    assert ends_so != holds_own


def test_a_window_of_one_document_borrows_from_the_next(tmp_path):
    tiny_corpus(tmp_path, documents=3, shards=3, lengths=(30, 30))
    order = pairs(Corpus.open(tmp_path), window=1)
    for position in range(order.per_epoch):
        chunk = order.piece(0, position)
        other = np.concatenate(list(chunk.sample_other_document(np.random.default_rng(0))))
        own = np.concatenate(chunk.sentences)
        holder = next(d for d in documents(order.corpus) if set(own.tolist()) <= set(d))
        assert not set(other.tolist()) <= set(holder)


def test_one_document_has_no_other(tmp_path):
    tiny_corpus(tmp_path, documents=1, shards=1)
    with pytest.raises(UserError, match=r"a single document.*random next sentence"):
        pairs(Corpus.open(tmp_path))


def test_one_document_held_out_asks_for_a_larger_share(tmp_path):
    tiny_corpus(tmp_path, validation=1)
    with pytest.raises(UserError, match=r"a single document in its split `validation`.*validation=0\.1"):
        pairs(Corpus.open(tmp_path), split="validation")


def test_pairs_need_sentence_boundaries(tmp_path):
    tiny_corpus(tmp_path, sentences=False)
    with pytest.raises(
        UserError,
        match=r"was built without sentences, which the objective needs: build it with annotate\.sentences=true,",
    ):
        pairs(Corpus.open(tmp_path))

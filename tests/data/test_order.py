"""Order of an epoch: each token once, shuffled, with random access."""

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


def sorted_documents(corpus):
    return sorted(tokens.tolist() for tokens in corpus.documents("train"))


def unshuffle(order, epoch=0):
    """Return the sequences of an epoch in the order of the stream they were cut from. -1 is a slot."""
    pieces = {order._find(epoch, position)[1]: order.piece(epoch, position) for position in range(order.per_epoch)}
    assert sorted(pieces) == list(range(order.per_epoch))
    return [
        [token for part in pieces[index] for token in [*part.tokens.tolist(), *[-1] * part.slots]]
        for index in sorted(pieces)
    ]


@pytest.mark.parametrize("window", [1, 2, 8])
@pytest.mark.parametrize("slots", [0, 1, 2])
def test_an_epoch_has_each_token_once(corpus, window, slots):
    """Except a tail that is shorter than a sequence."""
    sequences = unshuffle(stream(corpus, SequenceWindow(stride=16, slots=slots), window=window))
    tokens = Counter(token for sequence in sequences for token in sequence)
    expected = Counter(token for document in sorted_documents(corpus) for token in document)
    expected[-1] = slots * len(sorted_documents(corpus))
    assert not tokens - expected
    assert (expected - tokens).total() == expected.total() % 16


@pytest.mark.parametrize("window", [1, 2, 8])
def test_documents_are_concatenated_with_slots(corpus, window):
    sequences = unshuffle(stream(corpus, SequenceWindow(stride=16, slots=1), window=window))
    texts = " ".join(str(token) for sequence in sequences for token in sequence).split(" -1")
    documents = [[int(token) for token in text.split()] for text in texts[:-1]]
    assert all(document in sorted_documents(corpus) for document in documents)
    assert len(documents) > 50 - 16


def test_sequences_overlap_by_the_lookahead(corpus):
    sequences = unshuffle(stream(corpus, SequenceWindow(stride=16, lookahead=1, slots=1)))
    assert {len(sequence) for sequence in sequences} == {17}
    assert all(before[-1] == after[0] for before, after in pairwise(sequences))


def test_random_access_equals_sequential_reading(corpus):
    cut = SequenceWindow(stride=16, lookahead=1, slots=1)
    order = stream(corpus, cut)
    sequential = [order.piece(epoch, position) for epoch in (0, 1) for position in range(order.per_epoch)]
    for index in np.random.default_rng(0).permutation(len(sequential))[:40].tolist():
        piece = stream(corpus, cut).piece(*divmod(index, order.per_epoch))
        assert [(part.tokens.tolist(), part.slots) for part in piece] == [
            (part.tokens.tolist(), part.slots) for part in sequential[index]
        ]


def test_order_differs_by_epoch_and_seed(corpus):
    def texts(seed, epoch):
        order = stream(corpus, SequenceWindow(stride=16), seed=seed)
        return [
            [t for part in order.piece(epoch, position) for t in part.tokens.tolist()]
            for position in range(order.per_epoch)
        ]

    first = texts(0, 0)
    assert first == texts(0, 0)
    for other in (texts(0, 1), texts(1, 0)):
        assert sum(sequence in first for sequence in other) < len(first) / 2


def test_only_needed_shards_are_opened(corpus):
    order = stream(corpus, SequenceWindow(stride=16), window=1)
    order.piece(0, 0)
    assert order.shards._checked[:].count(1) <= 2


def test_sequences_of_a_long_document_are_shuffled(tmp_path):
    tiny_corpus(tmp_path, documents=2, shards=1, lengths=(2000, 2000))
    order = stream(Corpus.open(tmp_path), SequenceWindow(stride=20))
    indices = [order._find(0, position)[1] for position in range(order.per_epoch)]
    assert np.mean(np.diff(indices) == 1) < 0.05


def test_split_shorter_than_a_sequence_is_rejected(corpus):
    with pytest.raises(
        UserError,
        match=r"has 2,261 tokens in its split `train`, less than one sequence of 1000000: lower data\.sequence",
    ):
        stream(corpus, SequenceWindow(stride=1_000_000))


def sentence_groups(corpus, length=16, window=2, split="train"):
    return SentenceGroupOrder(corpus, split, length=length, seed=0, window=window)


@pytest.mark.parametrize("window", [1, 8])
def test_chunks_divide_each_document(corpus, window):
    order = sentence_groups(corpus, window=window)
    rebuilt: dict[tuple[int, int], dict[int, list[int]]] = {}
    for position in range(order.per_epoch):
        at, sample = order._find(0, position)
        table = order._window((0, at))
        sample -= int(order._epoch(0).samples[at])
        index = int(np.searchsorted(table.edges, sample, side="right")) - 1
        document = (int(table.shard[index]), int(table.document[index]))
        tokens = [token for sentence in order.piece(0, position).sentences for token in sentence.tolist()]
        chunks = rebuilt.setdefault(document, {})
        assert chunks.setdefault(sample - int(table.edges[index]), tokens) is tokens
    documents = [[token for chunk in sorted(chunks) for token in chunks[chunk]] for chunks in rebuilt.values()]
    assert sorted(documents) == sorted_documents(corpus)
    assert order.per_epoch == sum(max(1, -(-len(document) // 16)) for document in documents)


@settings(deadline=None, max_examples=30)
@given(position=st.integers(0, 50), seed=st.integers(0, 1000))
def test_other_document_differs(corpus, position, seed):
    order = sentence_groups(corpus)
    chunk = order.piece(0, position)
    other = [
        token for sentence in chunk.sample_other_document(np.random.default_rng(seed)) for token in sentence.tolist()
    ]
    own = np.concatenate(chunk.sentences).tolist()
    documents = sorted_documents(corpus)
    with_other = [index for index, document in enumerate(documents) if document[-len(other) :] == other]
    with_own = [
        index
        for index, document in enumerate(documents)
        if any(document[start : start + len(own)] == own for start in range(len(document)))
    ]
    # Tokens are sampled from 60,000 ids, so only very short texts occur in more than one document.
    assume(len(with_other) == len(with_own) == 1)
    assert with_other != with_own


def test_other_document_may_be_in_the_next_window(tmp_path):
    tiny_corpus(tmp_path, documents=3, shards=3, lengths=(30, 30))
    order = sentence_groups(Corpus.open(tmp_path), window=1)
    for position in range(order.per_epoch):
        chunk = order.piece(0, position)
        other = np.concatenate(list(chunk.sample_other_document(np.random.default_rng(0))))
        own = np.concatenate(chunk.sentences)
        own_document = next(
            document for document in sorted_documents(order.corpus) if set(own.tolist()) <= set(document)
        )
        assert not set(other.tolist()) <= set(own_document)


def test_single_document_is_rejected(tmp_path):
    tiny_corpus(tmp_path, documents=1, shards=1)
    with pytest.raises(UserError, match=r"a single document.*random next sentence"):
        sentence_groups(Corpus.open(tmp_path))


def test_single_validation_document_is_rejected(tmp_path):
    tiny_corpus(tmp_path, validation=1)
    with pytest.raises(UserError, match=r"a single document in its split `validation`.*validation=0\.1"):
        sentence_groups(Corpus.open(tmp_path), split="validation")


def test_missing_sentences_are_rejected(tmp_path):
    tiny_corpus(tmp_path, sentences=False)
    with pytest.raises(
        UserError,
        match=r"was built without sentences, which the objective needs: build it with annotate\.sentences=true,",
    ):
        sentence_groups(Corpus.open(tmp_path))

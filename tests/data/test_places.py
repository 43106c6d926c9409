"""What is known of places in a document comes with the slices that rows are cut into."""

import numpy as np
import pytest

from megaptm.data.manifest import write_manifest
from megaptm.data.shards import Corpus
from megaptm.data.stream_order import StreamOrder
from megaptm.data.writer import ShardWriter
from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, SequenceWindow
from tests.data.corpora import tiny_corpus

KNOWN = ("sentences", "words", "tags", "turns")
FIELDS = ("tokens", *KNOWN)


def known_of(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Everything is written in the ids: 10 x turn's role, or a start of something in the last digit."""
    digit, role = tokens % 10, tokens // 10
    changes = np.union1d([0], np.flatnonzero(np.diff(role)) + 1)
    tags = np.flatnonzero(digit == 3)
    tags = tags[tags + 2 <= len(tokens)]
    return {
        "words": np.flatnonzero(digit != 9),
        "sentences": np.flatnonzero(digit == 1),
        "tags": np.stack([tags, tags + 2, role[tags]], axis=1),
        "turns": np.stack([changes, role[changes]], axis=1),
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    draw = np.random.default_rng(0)
    with ShardWriter(folder / "train-000000.tar", "uint16", FIELDS) as writer:
        for key in range(12):
            roles = np.repeat(draw.integers(1, 5, 8), draw.integers(1, 9, 8))
            tokens = roles * 10 + draw.integers(0, 10, len(roles))
            tokens[0] = roles[0] * 10 + 1  # a document begins with a sentence
            # Tags must not lie in one another.
            tokens[1:][(tokens[1:] % 10 == 3) & (tokens[:-1] % 10 == 3)] += 1
            writer.add(key, tokens, known_of(tokens), text_bytes=len(tokens))
        shard = writer.close()
    write_manifest(
        folder,
        dtype="uint16",
        fields=FIELDS,
        splits={"train": [shard]},
        tokenizer={"kind": "byte-bpe", "vocabulary": 60, "fingerprint": "tiny"},
        made_from={},
    )
    return Corpus.open(folder)


@pytest.mark.parametrize("stride", [5, 16, 64])
def test_places_are_those_of_the_slice(corpus, stride):
    order = StreamOrder(corpus, "train", cut=SequenceWindow(stride=stride), annotations=KNOWN, seed=0)
    seen = dict.fromkeys(KNOWN, 0)
    for position in range(order.per_epoch):
        for part in order.piece(0, position):
            assert isinstance(part, DocumentSlice)
            # A turn that goes on is known from its role: the slice's own tokens say as much as the document's did.
            for name, expected in known_of(part.tokens.astype(np.int64)).items():
                assert part.annotations[name].tolist() == expected.tolist(), name
                seen[name] += len(expected)
    assert all(seen.values())


def test_a_corpus_without_them_is_refused(tmp_path):
    tiny_corpus(tmp_path)
    with pytest.raises(
        UserError, match=r"was built without tags, which the objective needs: build it with annotate\.tags, a file of"
    ):
        StreamOrder(Corpus.open(tmp_path), "train", cut=SequenceWindow(stride=8), annotations=("tags",), seed=0)

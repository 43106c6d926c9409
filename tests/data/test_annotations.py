"""Annotations of a document are read with the slices of its sequences."""

import numpy as np
import pytest

from megaptm.data.manifest import write_manifest
from megaptm.data.shards import Corpus
from megaptm.data.stream_order import StreamOrder
from megaptm.data.writer import ShardWriter
from megaptm.errors import UserError
from megaptm.objectives.objective import DocumentSlice, SequenceWindow
from tests.data.corpora import tiny_corpus

ANNOTATIONS = ("sentences", "words", "tags", "turns")
FIELDS = ("tokens", *ANNOTATIONS)


def annotate(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Return the annotations, which the ids encode: tens are the role of a turn, ones the starts of the others."""
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
    folder = tmp_path_factory.mktemp("annotations")
    rng = np.random.default_rng(0)
    with ShardWriter(folder / "train-000000.tar", "uint16", FIELDS) as writer:
        for key in range(12):
            roles = np.repeat(rng.integers(1, 5, 8), rng.integers(1, 9, 8))
            tokens = roles * 10 + rng.integers(0, 10, len(roles))
            tokens[0] = roles[0] * 10 + 1  # a document starts with a sentence
            # Tags must not overlap.
            tokens[1:][(tokens[1:] % 10 == 3) & (tokens[:-1] % 10 == 3)] += 1
            writer.add(key, tokens, annotate(tokens), text_bytes=len(tokens))
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
def test_slices_have_their_annotations(corpus, stride):
    order = StreamOrder(corpus, "train", cut=SequenceWindow(stride=stride), annotations=ANNOTATIONS, seed=0)
    counts = dict.fromkeys(ANNOTATIONS, 0)
    for position in range(order.per_epoch):
        for part in order.piece(0, position):
            assert isinstance(part, DocumentSlice)
            # A turn that continues into a slice starts at its first token.
            for name, expected in annotate(part.tokens.astype(np.int64)).items():
                assert part.annotations[name].tolist() == expected.tolist(), name
                counts[name] += len(expected)
    assert all(counts.values())


def test_missing_annotations_are_rejected(tmp_path):
    tiny_corpus(tmp_path)
    with pytest.raises(
        UserError, match=r"was built without tags, which the objective needs: build it with annotate\.tags, a file of"
    ):
        StreamOrder(Corpus.open(tmp_path), "train", cut=SequenceWindow(stride=8), annotations=("tags",), seed=0)

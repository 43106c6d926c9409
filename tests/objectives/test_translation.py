"""Samples of complete pairs of sentences."""

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.data.shards import Corpus
from megaptm.data.stream_order import DocumentOrder
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext, SequenceWindow
from tests.data.corpora import tiny_corpus
from tests.objectives.samples import SPECIAL, random_slice, split_documents

TASK = OBJECTIVES["translation"]
END, PAD = SPECIAL.end, SPECIAL.pad


def pair(source: int, target: int, seed: int = 0) -> DocumentSlice:
    """Return a pair of random texts of `source` and `target` tokens."""
    return DocumentSlice(random_slice(source + target, seed=seed).tokens, 2, {"parts": np.array([0, source], np.int32)})


def test_layout_of_packed_pairs():
    piece = [pair(9, 5), pair(3, 8, seed=1)]
    sample = TASK.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 32, True))
    TASK.batch_spec(32, document_mask=True).check(sample, maker=TASK.name)
    sources, targets = zip(*(np.split(p.tokens, p.annotations["parts"][1:]) for p in piece), strict=True)
    assert split_documents(sample) == [[*source, END] for source in sources]
    assert split_documents(sample, "decoder_tokens", "decoder_document_ids") == [[PAD, *target] for target in targets]
    assert split_documents(sample, "labels", "decoder_document_ids") == [[*target, END] for target in targets]
    assert split_documents(sample, "positions") == [[*range(10)], [*range(4)]]
    assert split_documents(sample, "decoder_positions", "decoder_document_ids") == [[*range(6)], [*range(9)]]
    assert (sample["labels"][sample["decoder_document_ids"] == 0] == IGNORED).all()
    assert (sample["tokens"][sample["document_ids"] == 0] == PAD).all()


def test_pairs_that_do_not_fit_are_skipped():
    piece = [pair(9, 9), pair(4, 12, seed=1), pair(5, 5, seed=2), pair(40, 3, seed=3)]
    sample = TASK.make_sample(piece, SampleContext(SPECIAL, np.random.default_rng(0), 16, True))
    assert [len(source) for source in split_documents(sample)] == [10, 6]
    shorter = build_objective({"translation": {"max_target_length": 8}})
    sample = shorter.make_sample([pair(9, 9), pair(3, 7)], SampleContext(SPECIAL, np.random.default_rng(0), 16, True))
    assert sample["labels"].shape == (8,)
    assert [len(source) for source in split_documents(sample)] == [4]


@pytest.mark.parametrize("task", ["translation", "text-to-text"])
def test_pairs_with_an_empty_text_are_skipped(task):
    """Examples: a direction mark, or a text that the tokenizer's normalizer removes."""
    one_sided = DocumentSlice(random_slice(7).tokens, 2, {"parts": np.array([0], np.int32)})
    complete = pair(4, 5, seed=1)
    sample = OBJECTIVES[task].make_sample(
        [one_sided, complete], SampleContext(SPECIAL, np.random.default_rng(0), 32, True)
    )
    assert split_documents(sample) == [[*complete.tokens[:4], END]]


def test_empty_sample_has_no_labels():
    sample = TASK.make_sample([], SampleContext(SPECIAL, np.random.default_rng(0), 16, True))
    assert (sample["labels"] == IGNORED).all()
    assert not sample["document_ids"].any()


@pytest.mark.parametrize("stride", [7, 64, 300])
@pytest.mark.parametrize("window", [1, 2, 8])
def test_epoch_has_each_document_once(tmp_path, stride, window):
    tiny_corpus(tmp_path, lengths=(1, 90))
    corpus = Corpus.open(tmp_path)
    order = DocumentOrder(
        corpus, "train", cut=SequenceWindow(stride=stride, slots=2), annotations=("words",), window=window, seed=3
    )
    slices = [document for position in range(order.per_epoch) for document in order.piece(0, position)]
    documents = sorted(document.tokens.tolist() for document in slices)
    expected = sorted(tokens.tolist() for tokens in corpus.documents("train"))
    assert all(document.slots == 2 and document.annotations["words"][0] == 0 for document in slices)
    # Documents that start after the last full sample are left out.
    assert all(document in expected for document in documents)
    missing = sum(map(len, expected)) - sum(map(len, documents)) + 2 * (len(expected) - len(documents))
    assert len(documents) == len({tuple(document) for document in documents})
    assert missing < stride + 90


def test_corpus_without_parts_is_rejected(tmp_path):
    tiny_corpus(tmp_path)
    with pytest.raises(
        UserError, match="was built without parts, which the objective needs: build it with sources with `parts` or"
    ):
        DocumentOrder(
            Corpus.open(tmp_path), "train", cut=SequenceWindow(stride=8), annotations=TASK.annotations, seed=0
        )

"""fastText's binary format: tables of words and subwords that `fasttext.load_model` and gensim read."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from megaptm.errors import UserError
from megaptm.families.word_vectors.vectors import read_table, read_word_spec
from megaptm.families.word_vectors.vocabulary import encode_word, frequent_words, read_counts
from megaptm.families.word_vectors.windows import CBOW, HUFFMAN, SOFTMAX, WordWindows
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.tokenizers import load_tokenizer

MAGIC, VERSION = 793712314, 12
NEGATIVE_SAMPLING, FULL_SOFTMAX, CBOW_MODEL, SKIP_GRAM_MODEL = 2, 3, 1, 2
"""Values of fastText's enumerations."""
MAX_INT = (1 << 31) - 1
"""Maximum value of integers in fastText's format."""
RATE_UPDATES = 100
"""Words between updates of the learning rate; unused in trained models."""


def encode_fasttext_model(checkpoint: RunCheckpoint) -> Iterator[bytes]:
    """Yield the parts of a fastText model file: settings, words, input rows of words and of buckets, output rows."""
    spec, task = read_word_spec(checkpoint), checkpoint.config.built_objective
    size = spec.size
    if not size.buckets:
        raise UserError(f"{spec.name} has no subwords, which fastText's files need: use --format word2vec-binary.")
    assert isinstance(task, WordWindows)
    if task.output == HUFFMAN:
        raise UserError(
            "fastText's files cannot hold a model with hierarchical softmax, because fastText builds another Huffman "
            "tree when it reads the file: use --format fasttext-vec."
        )
    tokenizer, counts = load_tokenizer(checkpoint.tokenizer), read_counts(checkpoint.checkpoint.reader, spec.vocabulary)
    ids = frequent_words(counts, tokenizer.special.specials, task.min_count)
    model = CBOW_MODEL if isinstance(task, CBOW) else SKIP_GRAM_MODEL
    loss = FULL_SOFTMAX if task.output == SOFTMAX else NEGATIVE_SAMPLING
    epochs = min(checkpoint.config.data.epochs or 1, MAX_INT)
    yield struct.pack("<ii", MAGIC, VERSION)
    yield struct.pack("<6i", size.width, task.window, epochs, task.min_count, task.negatives, 1)
    yield struct.pack("<6i", loss, model, size.buckets, *size.ngrams, RATE_UPDATES)
    yield struct.pack("<d", task.subsample)
    yield struct.pack("<3i2q", len(ids), len(ids), 0, int(counts[ids].sum()), -1)
    for id_ in ids.tolist():
        yield encode_word(tokenizer.name(id_)) + b"\0" + struct.pack("<qb", int(counts[id_]), 0)
    table = read_table(checkpoint, "input")
    yield from _matrix_bytes(np.concatenate([table[ids], table[spec.vocabulary :]]))
    yield from _matrix_bytes(read_table(checkpoint, "output")[ids])


def _matrix_bytes(rows: np.ndarray) -> Iterator[bytes]:
    yield struct.pack("<?2q", False, *rows.shape)
    yield rows.astype("<f4").tobytes()

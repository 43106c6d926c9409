"""Export of word vectors: formats of word2vec, GloVe and fastText, and safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from megaptm.errors import UserError
from megaptm.families.word_vectors.fasttext_file import encode_fasttext_model
from megaptm.families.word_vectors.vectors import WordVectors, read_vectors
from megaptm.families.word_vectors.vocabulary import encode_word
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.storage import AtomicFile


def _word2vec_text(vectors: WordVectors) -> Iterator[bytes]:
    """Yield word vectors in word2vec's text format: a line with number of words and width, then a line per word with
    its exact values."""
    yield _heading_line(vectors)
    yield from _glove_text(vectors)


def _glove_text(vectors: WordVectors) -> Iterator[bytes]:
    """Yield word vectors in GloVe's text format, a line per word, without a header: the word and its exact values."""
    for word, row in zip(vectors.words, vectors.vectors, strict=True):
        # The shortest decimal that is read back as the same float32.
        yield encode_word(word) + f" {' '.join(map(str, row))}\n".encode()


def _word2vec_binary(vectors: WordVectors) -> Iterator[bytes]:
    """Yield word vectors in word2vec's binary format: a line with number of words and width, then each word, a space,
    its float32 values and a newline, as word2vec -binary 1 does."""
    yield _heading_line(vectors)
    for word, row in zip(vectors.words, vectors.vectors.astype("<f4"), strict=True):
        yield encode_word(word) + b" " + row.tobytes() + b"\n"


def encode_safetensors(vectors: WordVectors) -> Iterator[bytes]:
    """Yield word vectors as safetensors: `vectors` [N, D] and `counts` [N]; the metadata field `words` holds the words
    as a JSON list."""
    tensors = {"vectors": np.ascontiguousarray(vectors.vectors), "counts": vectors.counts}
    yield save(tensors, metadata={"words": json.dumps([*vectors.words], ensure_ascii=False)})


def _heading_line(vectors: WordVectors) -> bytes:
    return f"{len(vectors.words)} {vectors.vectors.shape[1]}\n".encode()


FORMATS: dict[str, Callable[[WordVectors], Iterator[bytes]]] = {
    "word2vec": _word2vec_text,
    "word2vec-binary": _word2vec_binary,
    "glove": _glove_text,
    "fasttext-vec": _word2vec_text,  # the same lines, with the means over words and subwords
    "safetensors": encode_safetensors,
}


def export_word_vectors(checkpoint: RunCheckpoint, path: Path, format_: str) -> None:
    """Write trained word vectors to a file, atomically."""
    content = (
        encode_fasttext_model(checkpoint) if format_ == "fasttext-bin" else FORMATS[format_](read_vectors(checkpoint))
    )
    if path.is_dir():
        raise UserError(f"{path} is a folder: give the path of a file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as temporary, temporary.open("wb") as file:
        file.writelines(content)

"""Word vectors in the formats in which others are: word2vec's two, GloVe's, fastText's two and safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from megaptm.errors import UserError
from megaptm.run.checkpoint import RunCheckpoint
from megaptm.storage import AtomicFile
from megaptm.words.fasttext_file import fasttext_model
from megaptm.words.vectors import WordVectors, vectors_of
from megaptm.words.vocabulary import written_word


def word2vec_text(vectors: WordVectors) -> Iterator[bytes]:
    """A line with the number of words and the width, then a line a word: the word and its numbers, exactly."""
    yield _heading(vectors)
    yield from glove_text(vectors)


def glove_text(vectors: WordVectors) -> Iterator[bytes]:
    """A line a word, and none before: the word and its numbers, exactly."""
    for word, row in zip(vectors.words, vectors.vectors, strict=True):
        # The shortest digits that are read back as the same fp32.
        yield written_word(word) + f" {' '.join(map(str, row))}\n".encode()


def word2vec_binary(vectors: WordVectors) -> Iterator[bytes]:
    """A line with the number of words and the width, then each word, a space, its fp32 numbers, and a newline, as
    word2vec writes with -binary 1."""
    yield _heading(vectors)
    for word, row in zip(vectors.words, vectors.vectors.astype("<f4"), strict=True):
        yield written_word(word) + b" " + row.tobytes() + b"\n"


def safetensors(vectors: WordVectors) -> Iterator[bytes]:
    """`vectors` [N, D] and `counts` [N]; the words, as a JSON list, are under `words` in the metadata."""
    tensors = {"vectors": np.ascontiguousarray(vectors.vectors), "counts": vectors.counts}
    yield save(tensors, metadata={"words": json.dumps([*vectors.words], ensure_ascii=False)})


def _heading(vectors: WordVectors) -> bytes:
    return f"{len(vectors.words)} {vectors.vectors.shape[1]}\n".encode()


FORMATS: dict[str, Callable[[WordVectors], Iterator[bytes]]] = {
    "word2vec": word2vec_text,
    "word2vec-binary": word2vec_binary,
    "glove": glove_text,
    "fasttext-vec": word2vec_text,  # the same lines, of the means over words' pieces
    "safetensors": safetensors,
}


def export(checkpoint: RunCheckpoint, path: Path, format_: str) -> None:
    """Write a file, whole or not at all."""
    content = fasttext_model(checkpoint) if format_ == "fasttext-bin" else FORMATS[format_](vectors_of(checkpoint))
    if path.is_dir():
        raise UserError(f"{path} is a folder: name the file that is to be written.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(path) as part, part.open("wb") as file:
        file.writelines(content)

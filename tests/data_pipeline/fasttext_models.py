"""Writes supervised models of fastText: files of version 12, with a vector of one number per word and label."""

import struct
from pathlib import Path

import numpy as np


def write_fasttext(path: Path, words: dict[str, float], labels: dict[str, float]) -> Path:
    """Write a model whose probabilities are the softmax of each label's number times the mean number of the words."""
    loss, model = 3, 3  # softmax, supervised
    args = struct.pack("<12id", 1, 5, 5, 1, 5, 1, loss, model, 0, 0, 0, 100, 1e-4)
    entries = [(word, 0) for word in words] + [(f"__label__{label}", 1) for label in labels]
    dictionary = struct.pack("<iiiqq", len(entries), len(words), len(labels), len(entries), -1)
    dictionary += b"".join(name.encode() + b"\0" + struct.pack("<qb", 1, kind) for name, kind in entries)
    matrices = b"".join(
        struct.pack("<?qq", False, len(values), 1) + np.array([*values.values()], "<f4").tobytes()
        for values in (words, labels)
    )
    path.write_bytes(struct.pack("<ii", 793712314, 12) + args + dictionary + matrices)
    return path

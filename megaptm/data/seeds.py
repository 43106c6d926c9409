"""Random generators that depend on what they are for, and on nothing else: there is no global state to save."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def generator(*key: int | str) -> np.random.Generator:
    """The generator of a key such as (seed, task, epoch, sample index): same key, same draws, on any machine."""
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()
    # Philox takes its key as it is, a few microseconds, and keys that differ in one bit give unrelated streams.
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

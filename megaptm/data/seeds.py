"""Random generators that depend only on their purpose, so there is no global state to save."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def seeded_generator(*key: int | str) -> np.random.Generator:
    """Return the random generator of a key such as (seed, task, epoch, sample index). It is the same on any machine."""
    digest = hashlib.blake2b(json.dumps(key).encode(), digest_size=16).digest()
    # Philox uses the key directly, which takes a few microseconds, and keys that differ in one bit give independent
    # streams.
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

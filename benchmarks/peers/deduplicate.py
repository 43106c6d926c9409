"""Runs in the environment of the peers: documents/s of datasketch or rensa, as their pages say to use them.

python benchmarks/peers/deduplicate.py datasketch|rensa TEXTS.json
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

# 126 of our 128 numbers are in bands.
NGRAM, HASHES, BANDS, ROWS = 5, 126, 21, 6


def shingles(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[at : at + NGRAM]) for at in range(max(len(words) - NGRAM + 1, 1))]


def with_datasketch(texts: list[str]) -> tuple[float, int]:
    """Seconds of signing, documents that are a near duplicate of an earlier one."""
    from datasketch import MinHash, MinHashLSH

    begun = time.perf_counter()
    encoded = ([shingle.encode() for shingle in shingles(text)] for text in texts)
    signatures = list(MinHash.generator(encoded, num_perm=HASHES))
    signed = time.perf_counter() - begun
    index, found = MinHashLSH(num_perm=HASHES, params=(BANDS, ROWS)), 0
    for number, signature in enumerate(signatures):
        found += bool(index.query(signature))
        index.insert(number, signature)
    return signed, found


def with_rensa(texts: list[str]) -> tuple[float, int]:
    from rensa import RMinHash, RMinHashLSH

    begun = time.perf_counter()
    matrix = RMinHash.digest_matrix_from_token_sets(map(shingles, texts), HASHES, 0)
    signed = time.perf_counter() - begun
    index = RMinHashLSH(threshold=0.8, num_perm=HASHES, num_bands=BANDS)
    return signed, sum(index.query_duplicate_flags_matrix_one_shot(matrix))


def main() -> None:
    name, path = sys.argv[1:]
    texts = json.loads(Path(path).read_text())
    begun = time.perf_counter()
    signed, found = {"datasketch": with_datasketch, "rensa": with_rensa}[name](texts)
    whole = time.perf_counter() - begun
    print(json.dumps({"signed": len(texts) / signed, "found": len(texts) / whole, "duplicates": found}))


if __name__ == "__main__":
    main()

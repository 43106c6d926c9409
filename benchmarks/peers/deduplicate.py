"""Documents per second of datasketch or rensa, used as in their documentation. Runs in the environment of the peers.

python benchmarks/peers/deduplicate.py datasketch|rensa TEXTS.json
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

# 126 of megaptm's 128 hashes are in bands.
NGRAM, HASHES, BANDS, ROWS = 5, 126, 21, 6


def shingles(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[at : at + NGRAM]) for at in range(max(len(words) - NGRAM + 1, 1))]


def with_datasketch(texts: list[str]) -> tuple[float, int]:
    """Return the seconds of signing, and the documents that are near duplicates of an earlier one."""
    from datasketch import MinHash, MinHashLSH

    started = time.perf_counter()
    encoded = ([shingle.encode() for shingle in shingles(text)] for text in texts)
    signatures = list(MinHash.generator(encoded, num_perm=HASHES))
    signed = time.perf_counter() - started
    index, num_duplicates = MinHashLSH(num_perm=HASHES, params=(BANDS, ROWS)), 0
    for number, signature in enumerate(signatures):
        num_duplicates += bool(index.query(signature))
        index.insert(number, signature)
    return signed, num_duplicates


def with_rensa(texts: list[str]) -> tuple[float, int]:
    from rensa import RMinHash, RMinHashLSH

    started = time.perf_counter()
    matrix = RMinHash.digest_matrix_from_token_sets(map(shingles, texts), HASHES, 0)
    signed = time.perf_counter() - started
    index = RMinHashLSH(threshold=0.8, num_perm=HASHES, num_bands=BANDS)
    return signed, sum(index.query_duplicate_flags_matrix_one_shot(matrix))


def main() -> None:
    name, path = sys.argv[1:]
    texts = json.loads(Path(path).read_text())
    started = time.perf_counter()
    signing, num_duplicates = {"datasketch": with_datasketch, "rensa": with_rensa}[name](texts)
    total = time.perf_counter() - started
    rates = {"signed": len(texts) / signing, "deduplicated": len(texts) / total}
    print(json.dumps({**rates, "duplicates": num_duplicates}))


if __name__ == "__main__":
    main()

"""Sketching, and finding near duplicates from text to the list of dropped documents, compared with datasketch and
rensa.

    python benchmarks/deduplicate.py [--megabytes 200] [--peers PYTHON]

Documents of about 3 KB combine paragraphs of the Python library and its reference. Every tenth document has a near
duplicate, in which one word in a hundred is changed. `--peers` is a Python interpreter with datasketch and rensa;
without it, only megaptm is measured. All run on one core.
"""

from __future__ import annotations

import json
import random
import re
import resource
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from common.options import Options

from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions, find_duplicates, write_part
from data_pipeline.deduplicate.sketch import Sketcher
from data_pipeline.deduplicate.texts import Shingles
from data_pipeline.document import Document

SIZE, PART = 3000, 16 << 20
PEERS = Path(__file__).parent / "peers/deduplicate.py"
PEER_DOCUMENTS = {"datasketch": 2_000, "rensa": 20_000}
"""Chosen so that each takes several seconds."""


@dataclass(frozen=True)
class Part:
    stem: str
    documents: int


def read_paragraphs() -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts = [*topics.values(), *(file.read_text(encoding="utf-8", errors="replace") for file in files)]
    return sorted({paragraph for text in texts for paragraph in text.split("\n\n") if len(paragraph) > 40})


def make_documents(total: int) -> Iterator[Document]:
    """Yield documents with about `total` bytes together. The source of a copy is that of its original and ` copy`."""
    rng, paragraphs, size, copies = random.Random(0), read_paragraphs(), 0, []
    index = 0
    while size < total:
        if index % 11 == 10:
            document = copies.pop(rng.randrange(len(copies)))
        else:
            document = Document(_combine_paragraphs(rng, paragraphs), str(index))
            if index % 11 == 0:
                copies.append(Document(_change_words(rng, document.text), f"{index} copy"))
        index += 1
        size += len(document.text)
        yield document


def _combine_paragraphs(rng: random.Random, paragraphs: list[str]) -> str:
    text = ""
    while len(text) < SIZE:
        text += rng.choice(paragraphs) + "\n\n"
    return text[:SIZE]


def _change_words(rng: random.Random, text: str) -> str:
    return re.sub(r"\w+", lambda word: "changed" if rng.random() < 0.01 else word.group(), text)


def measure_megaptm(documents: list[Document], folder: Path) -> tuple[float, float]:
    """Return the seconds of sketching, and of deduplication: writing and sketching parts, and finding duplicates."""
    options = Deduplicate(near=(near := NearDuplicateOptions()))
    start = time.perf_counter()
    sketcher = Sketcher(str(folder / "sketched"), options)
    for document in documents:
        sketcher.add(document, 0)
    sketcher.close()
    sketching = time.perf_counter() - start
    per_part = PART // SIZE
    start, parts = time.perf_counter(), []
    for first in range(0, len(documents), per_part):
        stem = str(folder / f"part-{first}")
        parts.append(Part(stem, write_part(stem, documents[first : first + per_part], options)))
    writing = time.perf_counter() - start
    duplicates = find_duplicates(
        parts, options, lambda name, function, jobs: [function(job) for job in jobs], str(folder)
    )
    total = time.perf_counter() - start
    print(f"  writing and sketching {writing:.1f} s, finding {total - writing:.1f} s")
    copies = find_similar_copies(documents, near)
    num_dropped = np.count_nonzero(duplicates.reasons[copies])
    print(f"  dropped {num_dropped:,} of {len(copies):,} copies with a similarity of 0.8 or more")
    print(f"  dropped {duplicates.counts}")
    return sketching, total


def find_similar_copies(documents: list[Document], near: NearDuplicateOptions) -> list[int]:
    """Return the indices of the copies that are near duplicates by all their shingles."""
    indices = {document.source: index for index, document in enumerate(documents)}
    similar = []
    for source, index in indices.items():
        if source.endswith("copy"):
            original = documents[indices[source.removesuffix(" copy")]]
            copy_shingles, shingles = (
                Shingles.from_text(document.text, near.ngram) for document in (documents[index], original)
            )
            if copy_shingles.similarity(shingles) >= near.threshold:
                similar.append(index)
    return similar


def measure_peers(python: str, documents: list[Document], folder: Path) -> dict[str, dict[str, float]]:
    """Return name of a peer -> documents/s of signing, and of signing and finding. Each peer has its own process."""
    texts = folder / "texts.json"
    rates = {}
    for name, count in PEER_DOCUMENTS.items():
        texts.write_text(json.dumps([document.text for document in documents[:count]]))
        command = [python, str(PEERS), name, str(texts)]
        rates[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return rates


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--megabytes", default=200, short=2)
    arguments.add_argument("--peers", help="Python interpreter with datasketch and rensa")
    options = arguments.read()
    documents = list(make_documents(options.megabytes << 20))
    megabytes = sum(len(document.text) for document in documents) / 1e6
    print(f"{len(documents):,} documents, {megabytes:.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        sketching, deduplication = measure_megaptm(documents, Path(folder))
        print(f"{'':<24}{'sketched/s':>14}{'MB/s':>10}{'deduplicated/s':>18}{'MB/s':>10}")
        sketched, deduplicated = len(documents) / sketching, len(documents) / deduplication
        speeds = f"{sketched:>14,.0f}{megabytes / sketching:>10.1f}"
        print(f"{'megaptm':<24}{speeds}{deduplicated:>18,.0f}{megabytes / deduplication:>10.1f}")
        peers = measure_peers(options.peers, documents, Path(folder)) if options.peers else {}
    size = megabytes / len(documents)
    for name, rates in peers.items():
        signed, deduplicated_ = rates["signed"], rates["deduplicated"]
        print(f"{name:<24}{signed:>14,.0f}{signed * size:>10.1f}{deduplicated_:>18,.0f}{deduplicated_ * size:>10.1f}")
    print(f"resident, texts included: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    print(f"METRIC sketched_documents_per_second {sketched:.0f} 1/s goal >=10000")
    print(f"METRIC deduplicated_documents_per_second {deduplicated:.0f} 1/s goal >=5000")
    for name, rates in peers.items():
        print(f"METRIC deduplication_over_{name} {deduplicated / rates['deduplicated']:.1f} ratio goal >=1")


if __name__ == "__main__":
    main()

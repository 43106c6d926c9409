"""Sketching, and finding near duplicates from text to the list of dropped documents, compared with datasketch and
rensa.

    python benchmarks/deduplicate.py [--megabytes 200] [--peers PYTHON]

Documents of about 3 KB are made of paragraphs of the Python library and its reference, recombined; every tenth is
repeated somewhere with one word in a hundred changed. `--peers` is a Python with datasketch and rensa; without it only
megaptm is measured. All run on one core.
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

from data_pipeline.deduplicate import Deduplicate, Near, find_duplicates, write_part
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


def real_paragraphs() -> list[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts = [*topics.values(), *(file.read_text(encoding="utf-8", errors="replace") for file in files)]
    return sorted({paragraph for text in texts for paragraph in text.split("\n\n") if len(paragraph) > 40})


def documents(total: int) -> Iterator[Document]:
    """Documents of about `total` bytes; a copy has the name of its original and `copy`."""
    rng, paragraphs, made, copies = random.Random(0), real_paragraphs(), 0, []
    number = 0
    while made < total:
        if number % 11 == 10:
            document = copies.pop(rng.randrange(len(copies)))
        else:
            document = Document(_recombined(rng, paragraphs), str(number))
            if number % 11 == 0:
                copies.append(Document(_changed(rng, document.text), f"{number} copy"))
        number += 1
        made += len(document.text)
        yield document


def _recombined(rng: random.Random, paragraphs: list[str]) -> str:
    text = ""
    while len(text) < SIZE:
        text += rng.choice(paragraphs) + "\n\n"
    return text[:SIZE]


def _changed(rng: random.Random, text: str) -> str:
    return re.sub(r"\w+", lambda word: "changed" if rng.random() < 0.01 else word.group(), text)


def ours(some: list[Document], folder: Path) -> tuple[float, float]:
    """Seconds of sketching; of writing and sketching parts and finding duplicates."""
    options = Deduplicate(near=(near := Near()))
    begun = time.perf_counter()
    sketcher = Sketcher(str(folder / "sketched"), options)
    for document in some:
        sketcher.add(document, 0)
    sketcher.close()
    sketching = time.perf_counter() - begun
    per_part = PART // SIZE
    begun, parts = time.perf_counter(), []
    for start in range(0, len(some), per_part):
        stem = str(folder / f"part-{start}")
        parts.append(Part(stem, write_part(stem, some[start : start + per_part], options)))
    writing = time.perf_counter() - begun
    found = find_duplicates(parts, options, lambda name, function, jobs: [function(job) for job in jobs], str(folder))
    whole = time.perf_counter() - begun
    print(f"  writing and sketching {writing:.1f} s, finding {whole - writing:.1f} s")
    copies = similar_copies(some, near)
    print(
        f"  of copies with a similarity of 0.8 or more {np.count_nonzero(found.reasons[copies]):,} of {len(copies):,}"
    )
    print(f"  dropped {found.counts}")
    return sketching, whole


def similar_copies(some: list[Document], near: Near) -> list[int]:
    """Rows of the copies that are near duplicates by all their shingles."""
    row_of = {document.source: row for row, document in enumerate(some)}
    rows = [(row, row_of[source.removesuffix(" copy")]) for source, row in row_of.items() if source.endswith("copy")]
    pairs = ((row, *(Shingles.of(some[one].text, near.ngram) for one in (row, original))) for row, original in rows)
    return [row for row, copy, original in pairs if copy.similarity(original) >= near.threshold]


def peers(python: str, some: list[Document], folder: Path) -> dict[str, dict[str, float]]:
    """Name -> documents/s of signing, and of signing and finding, each in its own process."""
    texts = folder / "texts.json"
    measured = {}
    for name, count in PEER_DOCUMENTS.items():
        texts.write_text(json.dumps([document.text for document in some[:count]]))
        command = [python, str(PEERS), name, str(texts)]
        measured[name] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return measured


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--megabytes", default=200, short=2)
    arguments.add_argument("--peers", help="a Python that has datasketch and rensa")
    options = arguments.read()
    some = list(documents(options.megabytes << 20))
    megabytes = sum(len(document.text) for document in some) / 1e6
    print(f"{len(some):,} documents, {megabytes:.0f} MB")
    with tempfile.TemporaryDirectory() as folder:
        sketching, whole = ours(some, Path(folder))
        print(f"{'':<24}{'sketched/s':>14}{'MB/s':>10}{'deduplicated/s':>18}{'MB/s':>10}")
        rates = len(some) / sketching, megabytes / sketching, len(some) / whole, megabytes / whole
        print("{:<24}{:>14,.0f}{:>10.1f}{:>18,.0f}{:>10.1f}".format("ours", *rates))
        others = peers(options.peers, some, Path(folder)) if options.peers else {}
    size = megabytes / len(some)
    for name, rate in others.items():
        signed, found = rate["signed"], rate["found"]
        print(f"{name:<24}{signed:>14,.0f}{signed * size:>10.1f}{found:>18,.0f}{found * size:>10.1f}")
    print(f"resident, texts included: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    print(f"METRIC sketched_documents_per_second {rates[0]:.0f} 1/s goal >=10000")
    print(f"METRIC deduplicated_documents_per_second {rates[2]:.0f} 1/s goal >=5000")
    for name, rate in others.items():
        print(f"METRIC deduplication_over_{name} {rates[2] / rate['found']:.1f} ratio goal >=1")


if __name__ == "__main__":
    main()

"""Speed of each cleaning step, and of a usual chain of steps, on one core; and of Dolma's taggers with such rules.

    python benchmarks/clean.py [--megabytes 32] [--rounds 3] [--peers FOLDER]

The text is docstrings of Python and of the installed packages: prose with lists, tables and examples. It is split at
blank lines into documents of up to 4,000 characters, about the length of web pages. The result is the best round, in
seconds of CPU time.

A tagger of Dolma measures a document by rules of the same paper, and drops nothing. Its definitions differ: for example
it counts n-grams of all sizes before any decision, and does not cut lines.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common.environments import CACHE, find_python, run_peer
from common.options import Options

from data_pipeline import clean
from data_pipeline.clean import STEPS, CleaningStep, run_steps
from data_pipeline.clean.basic import CutLong
from data_pipeline.clean.words import Words
from data_pipeline.document import Document, DropCounts

PAGE = 4_000
PHRASES = str(Path(clean.__file__).with_name("connectives.tsv"))
"""List of 148 phrases."""
DOCSTRING = re.compile(r'"""(.{80,}?)"""', re.DOTALL)
CHAIN = ("repair-encoding", "normalize-unicode", "normalize", "gopher-quality", "gopher-repetition", "scrub")
GOALS = {
    "repair-encoding": 300,
    "normalize-unicode": 200,
    "normalize": 300,
    "drop-lines": 50,
    "gopher-quality": 60,
    "gopher-repetition": 20,
    "c4-quality": 50,
    "scrub": 50,
    "decontaminate": 20,
    "tag-language": 5,
    "tag-lists": 8,
    "tag-personal": 10,
}

TAGGERS = {
    "gopher_v1": ("gopher-quality", "gopher-repetition"),
    "c4_v1": ("c4-quality",),
    "pii_regex_v2": ("scrub",),
}
"""Dolma's tagger -> the steps with rules of the same paper or purpose."""


def make_documents(size: int) -> list[Document]:
    """Return documents of about `size` characters together; fewer if this machine has less text."""
    documents: list[Document] = []
    cut = CutLong(PAGE)
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(folder).rglob("*.py")):
            if size < 0:
                return documents
            source = path.read_text(encoding="utf-8", errors="replace")
            text = "\n\n".join(inspect.cleandoc(docstring) for docstring in DOCSTRING.findall(source))
            pages = [page for page in cut([Document(text, path.name)], DropCounts()) if len(page.text) > PAGE // 4]
            size -= sum(len(page.text) for page in pages)
            documents += pages
    return documents


def make_steps(evaluation: Path) -> Iterator[tuple[str, CleaningStep]]:
    options = {"decontaminate": {"against": (str(evaluation),)}, "tag-lists": {"lists": {"*": PHRASES}}}
    for name in GOALS:
        yield name, STEPS[name](**options.get(name, {}))


def measure_rate(run, pages: list[Document], *, rounds: int) -> float:
    """Return megabytes per second of CPU time in the best round."""
    megabytes = sum(len(page.text.encode()) for page in pages) / 1e6
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return megabytes / best


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--megabytes", default=32, short=1)
    arguments.add("--rounds", default=3, short=1)
    arguments.add_argument("--peers", type=Path, default=CACHE / "peers", help="folder of the peers' environments")
    options = arguments.read()
    pages = make_documents(options.megabytes * 1_000_000)
    print(f"{len(pages):,} documents, {sum(len(page.text) for page in pages):,} characters")
    print(f"{'step':<24}{'MB/s':>8}{'retained':>9}")

    def count_ngrams() -> None:
        for page in pages:
            Words(page.text).ngrams(5)

    rates = {"words": measure_rate(count_ngrams, pages, rounds=options.rounds)}
    print(f"{'words and 5-grams':<24}{rates['words']:>8.0f}")
    evaluation = Path(__file__)
    chain = [STEPS[name]() for name in CHAIN]
    for name, run in [*((name, [step]) for name, step in make_steps(evaluation)), ("chain", chain)]:
        for step in run:  # models and tables are read before the measurement
            list(step(pages[:1], DropCounts()))
        num_retained = sum(1 for _ in run_steps(run, pages, DropCounts()))
        rates[name] = measure_rate(
            lambda run=run: list(run_steps(run, pages, DropCounts())), pages, rounds=options.rounds
        )
        print(f"{name:<24}{rates[name]:>8.0f}{num_retained / len(pages):>9.1%}")
    for name, value in rates.items():
        goal = {"words": 50, "chain": 10, **GOALS}[name]
        print(f"METRIC clean_{name.replace('-', '_')}_mb_s {value:.0f} MB/s goal >={goal}")
    if not options.short and (dolma := find_python("dolma", options.peers)):
        compare_with_dolma(dolma, pages, rates, rounds=options.rounds)


def compare_with_dolma(python: str, pages: list[Document], rates: dict[str, float], *, rounds: int) -> None:
    """Print the speed of Dolma's taggers on the same pages. `rates`: megabytes per second of each of our steps."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as file:
        file.writelines(json.dumps({"text": page.text}) + "\n" for page in pages)
        file.flush()
        seconds = run_peer(python, "dolma_taggers", file=file.name, taggers=[*TAGGERS], rounds=rounds)["seconds"]
    megabytes = sum(len(page.text.encode()) for page in pages) / 1e6
    for tagger, steps in TAGGERS.items():
        own = 1 / sum(1 / rates[step] for step in steps)
        peer = megabytes / seconds[tagger]
        print(f"Dolma's {tagger}: {peer:.1f} MB/s; {', '.join(steps)}: {own:.0f} MB/s")
        print(f"METRIC clean_over_dolma_{tagger} {own / peer:.1f} ratio goal >=1")


if __name__ == "__main__":
    sys.exit(main())

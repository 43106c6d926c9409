"""Real text of this machine, recombined to any amount without becoming duplicates.

Paragraphs of documentation, manual pages, docstrings and code are collected once each, and combined into documents of
about 3 kB in a random order from a seed. Most documents are full sentences, as a quality filter keeps them; some are
lists and change logs, some code. A few documents are repeated, unchanged or with one changed paragraph, so that a
deduplicator finds something.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import re
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

FILE_BYTES = 50 << 20
DOCUMENT_CHARACTERS = 3000
SHARES = {"sentences": 0.65, "notes": 0.15, "code": 0.2}
COPIES, NEAR_COPIES = 0.05, 0.05
PARAGRAPH = range(80, 4000)
"""Characters of a paragraph: shorter ones are headings, longer ones tables."""
POOL_CHARACTERS = 100 << 20
"""Maximum per kind. A repeated paragraph appears beside other paragraphs."""

Prose = Callable[[str], Iterator[str]]
"""Function that returns the paragraphs of a text."""

DOCSTRING = re.compile(r'"""(.+?)"""', re.DOTALL)
BLANK_LINES = re.compile(r"\n\s*\n")
SENTENCES = re.compile(r"[A-Z][^{}\\]*[.!?]")


def make_text(folder: Path, megabytes: int, seed: int = 0, *, short: bool = False) -> list[Path]:
    """Return two or more JSON Lines files with a field `text`, created at the first call.

    `short`: only Python's standard library, which is read in a few seconds.
    """
    path = folder / f"text-{megabytes}-{seed}{'-short' if short else ''}"
    if not path.is_dir():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        _write(part, _documents(random.Random(seed), short), megabytes * 1_000_000)
        part.rename(path)
    return sorted(path.glob("*.jsonl"))


def read_texts(files: list[Path]) -> Iterator[str]:
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _write(folder: Path, documents: Iterator[str], total: int) -> None:
    files = max(2, -(-total // FILE_BYTES))
    for number in range(files):
        written = 0
        with (folder / f"{number:03d}.jsonl").open("wb") as file:
            while written < total // files:
                line = {"text": next(documents), "id": f"{number}-{written}"}
                written += file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _documents(rng: random.Random, short: bool) -> Iterator[str]:
    """Yield documents without end; the paragraphs are shuffled again each time they are used up."""
    pool = _pool(_library("stdlib") if short else _files())
    streams = {kind: _shuffled(pool[kind], rng) for kind in SHARES}
    recent: list[list[str]] = []
    while True:
        draw = rng.random()
        if recent and draw < COPIES:
            yield "\n\n".join(rng.choice(recent))
        elif recent and draw < COPIES + NEAR_COPIES:
            near = list(rng.choice(recent))
            near[rng.randrange(len(near))] = next(streams["notes"])[:200]
            yield "\n\n".join(near)
        else:
            [kind] = rng.choices(list(SHARES), list(SHARES.values()))
            document = _document(streams[kind], rng)
            recent = [*recent[-999:], document]
            yield "\n\n".join(document)


def _document(stream: Iterator[str], rng: random.Random) -> list[str]:
    length = rng.lognormvariate(0, 0.8) * DOCUMENT_CHARACTERS
    document = [next(stream)]
    while sum(map(len, document)) < length:
        document.append(next(stream))
    return document


def _shuffled(paragraphs: list[str], rng: random.Random) -> Iterator[str]:
    while True:
        for at in rng.sample(range(len(paragraphs)), len(paragraphs)):
            yield paragraphs[at]


def _pool(files: Iterable[tuple[Path, Prose]]) -> dict[str, list[str]]:
    """Return kind -> unique paragraphs."""
    digests: set[bytes] = set()
    pool: dict[str, list[str]] = {kind: [] for kind in SHARES}
    sizes = dict.fromkeys(SHARES, 0)
    for file, prose in files:
        for kind, paragraph in _paragraphs(file, prose):
            if len(paragraph) not in PARAGRAPH or sizes[kind] > POOL_CHARACTERS:
                continue
            digest = hashlib.blake2b(paragraph.encode(), digest_size=8).digest()
            if digest not in digests:
                digests.add(digest)
                pool[kind].append(paragraph)
                sizes[kind] += len(paragraph)
    return pool


def _paragraphs(file: Path, prose: Prose) -> Iterator[tuple[str, str]]:
    text = _read(file)
    for paragraph in prose(text):
        yield "sentences" if SENTENCES.fullmatch(paragraph) else "notes", paragraph
    if file.suffix == ".py":
        for paragraph in BLANK_LINES.split(text):
            yield "code", paragraph.strip("\n")


def _files() -> Iterator[tuple[Path, Prose]]:
    """Yield files of this machine, with the function that finds their prose."""
    for section in sorted(Path("/usr/share/man").glob("man*")):
        yield from ((file, _manual) for file in sorted(section.iterdir()))
    yield from ((file, _prose) for file in sorted(Path("/usr/share/doc").rglob("*")) if file.is_file())
    for name in ("stdlib", "purelib"):
        yield from _library(name)


def _library(name: str) -> Iterator[tuple[Path, Prose]]:
    library = Path(sysconfig.get_path(name))
    yield from ((file, _prose) for ending in ("md", "rst", "txt") for file in sorted(library.rglob(f"*.{ending}")))
    yield from ((file, _docstrings) for file in sorted(library.rglob("*.py")))


def _read(file: Path) -> str:
    """Return the text; empty for broken links, other encodings and binary files."""
    try:
        content = file.read_bytes()
        text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
    return "" if "\0" in text else text


def _prose(text: str) -> Iterator[str]:
    """Return the paragraphs, one line each, as in text from the web."""
    yield from (" ".join(paragraph.split()) for paragraph in BLANK_LINES.split(text))


def _manual(text: str) -> Iterator[str]:
    """Return a manual page without roff commands."""
    lines = ("" if line.startswith((".", "'")) else line for line in text.split("\n"))
    yield from _prose(re.sub(r"\\f.|\\&", "", "\n".join(lines)).replace("\\-", "-"))


def _docstrings(text: str) -> Iterator[str]:
    for docstring in DOCSTRING.findall(text):
        yield from _prose(docstring)

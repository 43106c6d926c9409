"""Real text in parts, copies of it with planted changes, and their exact similarities."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

from data_pipeline.corpus.work import job_key
from data_pipeline.deduplicate import Deduplicate, Duplicates, find_duplicates, write_part
from data_pipeline.document import Document

WORDS = 450
"""Per document: about 3 KB."""


@dataclass(frozen=True)
class Written:
    stem: str
    documents: int


@cache
def real_documents() -> tuple[tuple[str, ...], ...]:
    """The paragraphs of each document: Python's reference, with no paragraph in two documents."""
    paragraphs = dict.fromkeys(
        paragraph.strip() for text in topics.values() for paragraph in text.split("\n\n") if paragraph.isascii()
    )
    documents: list[list[str]] = [[]]
    for paragraph in paragraphs:
        if sum(len(words_of(first)) for first in documents[-1]) >= WORDS:
            documents.append([])
        documents[-1].append(paragraph)
    return tuple(map(tuple, documents[:-1]))


@cache
def words_of(text: str) -> tuple[str, ...]:
    return tuple(re.findall("[a-z0-9]+", text.lower()))


def jaccard(first: str, second: str, ngram: int = 5) -> float:
    """Jaccard similarity of the sets of word n-grams, with Python's sets."""
    sets = []
    for text in (first, second):
        words = words_of(text)
        size = ngram if len(words) >= ngram else 1
        sets.append({words[at : at + size] for at in range(len(words) - size + 1)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def edited(paragraphs: Sequence[str], kind: str, strength: float, rng: random.Random) -> str:
    """A copy in which about `strength` of the words are replaced, removed or preceded by an inserted word, or in which
    that share of the paragraphs is moved."""
    paragraphs = list(paragraphs)
    if kind == "shuffle":
        offsets = rng.sample(range(len(paragraphs)), min(len(paragraphs), 2 + int(4 * strength * len(paragraphs))))
        for paragraph, other in zip(offsets[::2], offsets[1::2], strict=False):
            paragraphs[paragraph], paragraphs[other] = paragraphs[other], paragraphs[paragraph]
        return "\n\n".join(paragraphs)
    other_items = words_of(real_documents()[rng.randrange(len(real_documents()))][0]) or ("other",)
    change: Callable[[str], str] = {
        "replace": lambda word: rng.choice(other_items),
        "delete": lambda word: "",
        "insert": lambda word: f"{rng.choice(other_items)} {word}",
    }[kind]
    pieces = re.split(r"(\s+)", "\n\n".join(paragraphs))
    return "".join(change(piece) if piece.strip() and rng.random() < strength else piece for piece in pieces)


def in_process(name, function, jobs):
    return [function(job) for job in jobs]


def backwards(name, function, jobs):
    """Runs the last job first and as another process would receive it; each job has a name under which its result is
    stored."""
    assert len({job_key(function, job) for job in jobs}) == len(jobs)
    sent = [pickle.dumps((function, job)) for job in jobs]
    return [function(job) for function, job in map(pickle.loads, reversed(sent))][::-1]


def write_parts(folder: Path, texts: Sequence[str], options: Deduplicate, size: int = 100) -> list[Written]:
    """Texts as documents of sources `0`, `1`, ..., with `size` documents per part."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for begin in range(0, len(texts), size):
        subset = [Document(text, str(begin + number)) for number, text in enumerate(texts[begin : begin + size])]
        stem = str(folder / f"part-{begin // size}")
        parts.append(Written(stem, write_part(stem, subset, options)))
    return parts


def find(folder: Path, texts: Sequence[str], options: Deduplicate, size: int = 100, run=in_process) -> Duplicates:
    return find_duplicates(write_parts(folder, texts, options, size), options, run, str(folder / "found"))

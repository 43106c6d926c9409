"""What a build has to say: counts, what was left out and why, and how long documents are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from data_pipeline.corpus.composition import Composition, TextSize
from data_pipeline.corpus.tokenizing import ShardResult
from data_pipeline.corpus.unknown import UnknownWords, merged
from data_pipeline.document import Dropped
from megaptm.console import Console
from megaptm.data.shards import Manifest, Split

REPORT = "report.json"
BAR_WIDTH = 40
MOST_ROWS = 12
"""Sources that the terminal shows; the page and report.json have all."""


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """Saved as `report.json` in the corpus; not part of its identity, since it holds times."""

    folder: str
    id: str
    files: int
    splits: dict[str, dict[str, int]]
    """split -> documents, tokens, bytes (of the text in UTF-8), shards"""
    dropped: dict[str, int]
    """reason -> documents"""
    examples: dict[str, list[tuple[str, str]]]
    """reason -> where a few came from, and how each begins"""
    said: dict[str, str] = field(default_factory=dict)
    """reason -> what is wrong with the first of them, and what to do"""
    languages: dict[str, int] = field(default_factory=dict)
    """language -> documents, where a step has told it"""
    unknown_words: dict[str, UnknownWords] = field(default_factory=dict)
    """language, or script where none was told -> words, and those that the tokenizer makes unknown"""
    composition: Composition = field(default_factory=Composition)
    """Documents, tokens and bytes by source and by format, tokens by the length of documents, the largest documents"""
    lengths: dict[int, int]
    """2**i -> documents of 2**i to 2**(i + 1) - 1 tokens"""
    tokenizer: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    workers: int
    found: int = 0
    """Jobs that an earlier build had finished."""
    seconds: dict[str, float]
    """stage -> wall time"""

    def total(self, what: str) -> int:
        """`documents`, `tokens`, `bytes` or `shards` of all splits."""
        return sum(counts[what] for counts in self.splits.values())

    @property
    def read(self) -> int:
        """Documents that there were, kept or left out."""
        return self.total("documents") + sum(self.dropped.values())

    @property
    def who(self) -> str:
        return f"{self.workers} Ray workers" if self.workers else "one process"

    @property
    def tokens_per_byte(self) -> float:
        return self.total("tokens") / self.total("bytes")

    def save(self, folder: Path) -> None:
        totals = {what: self.total(what) for what in ("documents", "tokens", "bytes")}
        content = {**asdict(self), **totals, "tokens_per_byte": self.tokens_per_byte}
        (folder / REPORT).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        table = Table(title=f"corpus {self.folder}", title_justify="left")
        for name in ("split", "documents", "tokens", "bytes", "shards"):
            table.add_column(name, justify="left" if name == "split" else "right")
        for name, counts in self.splits.items():
            table.add_row(name, *(f"{counts[key]:,}" for key in ("documents", "tokens", "bytes", "shards")))
        console.print(table)
        console.print(Text(self._summary()), soft_wrap=True)
        for line in [*left_out(self.dropped, self.examples, self.said), *self.notes]:
            console.print(Text(line, "yellow"), soft_wrap=True)
        if self.languages:
            shown = sorted(self.languages.items(), key=lambda item: (-item[1], item[0]))[:8]
            console.print("languages: " + ", ".join(f"{name} {count:,}" for name, count in shown), highlight=False)
        if self.unknown_words:
            shares = ", ".join(f"{name} {count.share:.1%}" for name, count in self.unknown_words.items())
            console.print(Text(f"unknown words: {shares}"), soft_wrap=True)
        for name, sizes in (("source", self.composition.sources), ("format", self.composition.formats)):
            if len(sizes) > 1:
                console.print(_sizes(name, sizes))
        title = "documents by length in tokens, and the tokens of all that are so long"
        console.print(histogram(self.lengths, title, self.composition.lengths))

    def _summary(self) -> str:
        return (
            f"{self.tokenizer['kind']} tokenizer of {self.tokenizer['vocabulary']:,} ids, "
            f"{self.tokens_per_byte:.3f} tokens a byte; {sum(self.seconds.values()):.1f} s with {self.who}"
        )


def report_on(
    *, folder: str, manifest: Manifest, dropped: Dropped, results: Sequence[ShardResult], **rest: Any
) -> CorpusReport:
    """The report of a build, from its manifest and the account of each shard."""
    counts = np.sum([result.lengths for result in results], axis=0)
    languages: Counter[str] = Counter()
    for result in results:
        languages.update(result.languages)
    return CorpusReport(
        folder=folder,
        id=manifest.id,
        splits={name: _sums(split) for name, split in manifest.splits.items()},
        dropped=dict(dropped.counts),
        examples=dropped.examples,
        said=dropped.said,
        languages=dict(languages),
        unknown_words=merged(result.unknown for result in results),
        lengths={1 << power: int(count) for power, count in enumerate(counts) if count},
        tokenizer=dict(manifest.tokenizer),
        **rest,
    )


def _sizes(title: str, sizes: Mapping[str, TextSize]) -> Table:
    """A row for each source or format, the largest first."""
    table = Table(box=None, padding=(0, 1))
    for column in (title, "documents", "tokens", "bytes"):
        table.add_column(column, justify="left" if column == title else "right")
    for name, size in by_tokens(sizes)[:MOST_ROWS]:
        table.add_row(Text(name), f"{size.documents:,}", f"{size.tokens:,}", f"{size.bytes:,}")
    if len(sizes) > MOST_ROWS:
        table.add_row(f"and {len(sizes) - MOST_ROWS:,} more")
    return table


def by_tokens(sizes: Mapping[str, TextSize]) -> list[tuple[str, TextSize]]:
    """Names and sizes, the largest first."""
    return sorted(sizes.items(), key=lambda item: (-item[1].tokens, item[0]))


def _sums(split: Split) -> dict[str, int]:
    sums = {"documents": split.samples, "tokens": split.tokens, "bytes": split.bytes}
    return {**sums, "shards": len(split.shards)}


def left_out(
    dropped: Mapping[str, int], examples: Mapping[str, Sequence[tuple[str, str]]], said: Mapping[str, str]
) -> list[str]:
    """A line for each reason, the most frequent first: how many, where two came from, what the first was like."""
    lines = []
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        names = ", ".join(source for source, _ in examples.get(reason, ())[:2])
        more = f": the first {said[reason]}" if reason in said else ""
        lines.append(f"left out {count:,} {reason}{f' ({names})' if names else ''}{more}")
    return lines


def histogram(bins: dict[int, int], title: str, totals: Mapping[int, int] | None = None) -> Table:
    """Counts by powers of two, as bars; `totals` are other numbers of the same rows."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    most = max(bins.values(), default=0)
    for low in _powers(bins):
        count = bins.get(low, 0)
        beside = [f"{totals.get(low, 0):,}"] if totals else []
        table.add_row(f"{low:,} - {2 * low - 1:,}", f"{count:,}", "█" * round(BAR_WIDTH * count / most), *beside)
    return table


def _powers(bins: dict[int, int]) -> list[int]:
    if not bins:
        return []
    return [1 << power for power in range(min(bins).bit_length() - 1, max(bins).bit_length())]

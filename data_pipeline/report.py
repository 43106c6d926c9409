"""Report of a build: counts, drop reasons, and document lengths."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from data_pipeline.corpus.composition import Composition, TextSize
from data_pipeline.corpus.tokenizing import ShardResult
from data_pipeline.corpus.unknown import UnknownWords, describe_unknown_words, merge_unknown_words
from data_pipeline.document import DropCounts
from data_pipeline.packing import Packing, merge_packing_sums, packing_by_length, packing_table
from megaptm.console import Console
from megaptm.data.shards import Manifest, Split

REPORT = "report.json"
BAR_WIDTH = 40
MAX_ROWS = 12
"""Maximum sources that the report of a build prints in the terminal. The page and report.json list all."""


@dataclass(frozen=True, kw_only=True)
class CorpusReport:
    """Report saved as `report.json` in the corpus. It contains times, so it is not part of the corpus id."""

    folder: str
    id: str
    files: int
    splits: dict[str, dict[str, int]]
    """Size of each split: documents, tokens, bytes (of the text in UTF-8), shards."""
    dropped: dict[str, int]
    """Number of dropped documents by reason."""
    examples: dict[str, list[tuple[str, str]]]
    """Examples of dropped documents by reason: (source, first characters)."""
    messages: dict[str, str] = field(default_factory=dict)
    """Message about the first document dropped for each reason, with a remedy."""
    languages: dict[str, int] = field(default_factory=dict)
    """Number of documents of each language, if a step identifies languages."""
    unknown_words: dict[str, UnknownWords] = field(default_factory=dict)
    """Language, or script if the language is unknown -> number of words, and number of words with unknown tokens."""
    groups: dict[str, TextSize] = field(default_factory=dict)
    """Documents, tokens and bytes by group, if the recipe has groups."""
    clusters: dict[int, int] = field(default_factory=dict)
    """Histogram of cluster sizes, if they are counted: 2**i -> documents that stand for 2**i to 2**(i + 1) - 1."""
    copies: int = 0
    """Number of copies of documents besides the first."""
    composition: Composition = field(default_factory=Composition)
    """Documents, tokens and bytes by source and by format; tokens by document length; the largest documents."""
    lengths: dict[int, int]
    """Histogram of document lengths: 2**i -> documents of 2**i to 2**(i + 1) - 1 tokens."""
    packing: dict[int, Packing] = field(default_factory=dict)
    """Share of padding and of cut documents, by sequence length."""
    tokenizer: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    workers: int
    reused_jobs: int = 0
    """Jobs whose result was stored by an earlier build."""
    seconds: dict[str, float]
    """Wall time of each stage of the build in seconds."""

    def sum_over_splits(self, column: str) -> int:
        """Return the sum of `documents`, `tokens`, `bytes` or `shards` over all splits of the corpus."""
        return sum(counts[column] for counts in self.splits.values())

    @property
    def documents_read(self) -> int:
        """Return the number of documents that the build read, kept or dropped. Copies count once."""
        return self.sum_over_splits("documents") + sum(self.dropped.values()) - self.copies

    @property
    def executor(self) -> str:
        return f"{self.workers} Ray workers" if self.workers else "one process"

    @property
    def tokens_per_byte(self) -> float:
        return self.sum_over_splits("tokens") / self.sum_over_splits("bytes")

    def save(self, folder: Path) -> None:
        totals = {column: self.sum_over_splits(column) for column in ("documents", "tokens", "bytes")}
        content = {**asdict(self), **totals, "tokens_per_byte": self.tokens_per_byte}
        (folder / REPORT).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        table = Table(title=f"corpus {self.folder}", title_justify="left")
        for name in ("split", "documents", "tokens", "bytes", "shards"):
            table.add_column(name, justify="left" if name == "split" else "right")
        for name, counts in self.splits.items():
            table.add_row(name, *(f"{counts[key]:,}" for key in ("documents", "tokens", "bytes", "shards")))
        console.print(table)
        console.print(Text(self._summary_line()), soft_wrap=True)
        dropped = [*drop_lines(self.dropped, self.examples, self.messages), *_setting_lines(self.messages)]
        for line in [*dropped, *self.notes]:
            console.print(Text(line, "yellow"), soft_wrap=True)
        if self.languages:
            shown = sorted(self.languages.items(), key=lambda item: (-item[1], item[0]))[:8]
            console.print("languages: " + ", ".join(f"{name} {count:,}" for name, count in shown), highlight=False)
        if self.unknown_words:
            console.print(Text(describe_unknown_words(self.unknown_words)), soft_wrap=True)
        composition = self.composition
        for name, sizes in (("group", self.groups), ("source", composition.sources), ("format", composition.formats)):
            if len(sizes) > 1:
                console.print(_size_table(name, sizes))
        title = "documents by length in tokens, and their total tokens"
        console.print(histogram_table(self.lengths, title, self.composition.lengths))
        console.print(packing_table(self.packing))
        if self.clusters:
            console.print(histogram_table(self.clusters, "documents by the number of duplicates that they stand for"))

    def _summary_line(self) -> str:
        return (
            f"{self.tokenizer['kind']} tokenizer of {self.tokenizer['vocabulary']:,} ids, "
            f"{self.tokens_per_byte:.3f} tokens per byte; {sum(self.seconds.values()):.1f} s with {self.executor}"
        )


def make_corpus_report(
    *, folder: str, manifest: Manifest, dropped: DropCounts, results: Sequence[ShardResult], **fields: Any
) -> CorpusReport:
    """Make the report of a build from its manifest and the results of its shards."""
    counts = np.sum([result.lengths for result in results], axis=0)
    languages: Counter[str] = Counter()
    for result in results:
        languages.update(result.languages)
    return CorpusReport(
        folder=folder,
        id=manifest.id,
        splits={name: _split_totals(split) for name, split in manifest.splits.items()},
        dropped=dict(dropped.counts),
        examples=dropped.examples,
        messages=dropped.messages,
        languages=dict(languages),
        unknown_words=merge_unknown_words(result.unknown for result in results),
        groups=_sizes_by_group(manifest),
        lengths={1 << power: int(count) for power, count in enumerate(counts) if count},
        packing=packing_by_length(merge_packing_sums(result.packing for result in results)),
        tokenizer=dict(manifest.tokenizer),
        **fields,
    )


def _sizes_by_group(manifest: Manifest) -> dict[str, TextSize]:
    """Return the sizes of the groups of a corpus, by domain and range of quality; empty without groups."""
    if (groups := manifest.made_from.get("groups")) is None:
        return {}
    ranges = [f"{low:g} to {high:g}" for low, high in pairwise(groups["quality"])] or [""]
    names = [f"{domain} {bucket}".strip() for domain in groups["domains"] for bucket in ranges]
    sizes = {name: TextSize() for name in names}
    for split, counts in groups["shards"].items():
        of_shards = np.repeat(np.arange(len(names)), counts)
        for row, group in zip(manifest.splits[split].shards.rows, of_shards.tolist(), strict=True):
            sizes[names[group]].add(TextSize(int(row["samples"]), int(row["tokens"]), int(row["bytes"])))
    return sizes


def _size_table(title: str, sizes: Mapping[str, TextSize]) -> Table:
    """Return a report table with a row for each source or format, in descending order of tokens."""
    table = Table(box=None, padding=(0, 1))
    for column in (title, "documents", "tokens", "bytes"):
        table.add_column(column, justify="left" if column == title else "right")
    for name, size in sort_by_tokens(sizes)[:MAX_ROWS]:
        table.add_row(Text(name), f"{size.documents:,}", f"{size.tokens:,}", f"{size.bytes:,}")
    if len(sizes) > MAX_ROWS:
        table.add_row(f"and {len(sizes) - MAX_ROWS:,} more")
    return table


def sort_by_tokens(sizes: Mapping[str, TextSize]) -> list[tuple[str, TextSize]]:
    """Return the names and sizes of sources or formats in descending order of tokens."""
    return sorted(sizes.items(), key=lambda item: (-item[1].tokens, item[0]))


def _split_totals(split: Split) -> dict[str, int]:
    sums = {"documents": split.samples, "tokens": split.tokens, "bytes": split.bytes}
    return {**sums, "shards": len(split.shards)}


def drop_lines(
    dropped: Mapping[str, int], examples: Mapping[str, Sequence[tuple[str, str]]], messages: Mapping[str, str]
) -> list[str]:
    """Return a line of the report for each drop reason, the most frequent first: count, two sources, and the message
    about the first."""
    lines = []
    for reason, count in sorted(dropped.items(), key=lambda item: -item[1]):
        names = ", ".join(source for source, _ in examples.get(reason, ())[:2])
        more = f": the first {messages[reason]}" if reason in messages else ""
        lines.append(f"dropped {count:,} {reason}{f' ({names})' if names else ''}{more}")
    return lines


def _setting_lines(messages: Mapping[str, str]) -> list[str]:
    """Return how settings of a source are typed, if a message about dropped documents names a setting."""
    is_named = any("`" in message for message in messages.values())
    return ["settings of files on the command line: GLOB:KEY=VALUE, as in '*.csv:text=body'"] if is_named else []


def histogram_table(bins: dict[int, int], title: str, totals: Mapping[int, int] | None = None) -> Table:
    """Return a histogram as text: bars of counts by powers of two. `totals` adds a second number to each row."""
    table = Table(title=title, title_justify="left", box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column()
    largest = max(bins.values(), default=0)
    for low in _powers_of_two(bins):
        count = bins.get(low, 0)
        beside = [f"{totals.get(low, 0):,}"] if totals else []
        table.add_row(f"{low:,} - {2 * low - 1:,}", f"{count:,}", "█" * round(BAR_WIDTH * count / largest), *beside)
    return table


def _powers_of_two(bins: dict[int, int]) -> list[int]:
    if not bins:
        return []
    return [1 << power for power in range(min(bins).bit_length() - 1, max(bins).bit_length())]

"""Report of an image build: counts, drop reasons, and images that are converted when read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from data_pipeline.corpus.unknown import UnknownWords, describe_unknown_words
from data_pipeline.document import DropCounts
from data_pipeline.report import REPORT, drop_lines, histogram_table
from megaptm.console import Console
from megaptm.data.shards import Manifest
from megaptm.families.vit.corpus.folders import ImageShardResult


@dataclass(frozen=True, kw_only=True)
class ImageReport:
    """Report saved as `report.json` in the corpus. It contains times, so it is not part of the corpus id."""

    folder: str
    id: str
    splits: dict[str, dict[str, int]]
    """Size of each split of an image corpus: number of images, bytes (of their files), shards."""
    labels: dict[str, int]
    """Number of images of each label in an image corpus."""
    tokens: int
    """Number of tokens of all texts in an image corpus; one per label."""
    dropped: dict[str, int]
    """Number of dropped images by reason."""
    examples: dict[str, list[tuple[str, str]]]
    """Sources of some dropped images with their texts, by reason."""
    messages: dict[str, str]
    """Detailed message about the first image dropped for each reason, if there is one."""
    unknown_words: dict[str, UnknownWords]
    """Language, or script if the language is unknown -> number of words, and number of words with unknown tokens."""
    notes: list[str]
    """Warnings about words that the tokenizer does not know."""
    converted: dict[str, int]
    """Number of images that are kept, and converted when read, by the property that is converted."""
    sides: dict[int, int]
    """2**i -> number of images of size 2**i to 2**(i + 1) - 1."""
    size_name: str
    """Size that `sides` counts: `ImageLimits.size_name`."""
    workers: int
    reused_jobs: int
    """Number of jobs whose result was stored by an earlier build."""
    seconds: dict[str, float]
    """Wall time of each stage of an image build in seconds."""

    @classmethod
    def from_results(
        cls,
        folder: str,
        manifest: Manifest,
        names: Sequence[str],
        results: Mapping[str, Sequence[ImageShardResult]],
        dropped: DropCounts,
        *,
        unknown_words: Mapping[str, UnknownWords],
        notes: list[str],
        size_name: str,
        workers: int,
        reused_jobs: int,
        seconds: dict[str, float],
    ) -> ImageReport:
        """Make the report of an image build from the manifest and the results of all shards."""
        all_results = [result for split_results in results.values() for result in split_results]
        labels, oddities, sides = Counter[int](), Counter[str](), Counter[int]()
        for result in all_results:
            labels.update(result.labels)
            oddities.update(result.oddities)
            sides.update({1 << power: count for power, count in enumerate(result.sides) if count})
        return cls(
            folder=folder,
            id=manifest.id,
            splits={
                name: {"images": split.samples, "bytes": split.bytes, "shards": len(split.shards)}
                for name, split in manifest.splits.items()
            },
            labels={name: labels[number] for number, name in enumerate(names)},
            tokens=sum(split.tokens for split in manifest.splits.values()),
            dropped=dict(dropped.counts),
            examples=dropped.examples,
            messages=dropped.messages,
            unknown_words=dict(unknown_words),
            notes=notes,
            converted=dict(oddities),
            sides=dict(sides),
            size_name=size_name,
            workers=workers,
            reused_jobs=reused_jobs,
            seconds=seconds,
        )

    def save(self, folder: Path) -> None:
        (folder / REPORT).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        table = Table(title=f"corpus {self.folder}", title_justify="left")
        for name in ("split", "images", "bytes", "shards"):
            table.add_column(name, justify="left" if name == "split" else "right")
        for name, counts in self.splits.items():
            table.add_row(name, *(f"{counts[key]:,}" for key in ("images", "bytes", "shards")))
        console.print(table)
        executor = f"{self.workers} Ray workers" if self.workers else "one process"
        content = f"{len(self.labels):,} labels" if self.labels else f"texts of {self.tokens:,} tokens"
        console.print(Text(f"{content}; {sum(self.seconds.values()):.1f} s with {executor}"))
        if self.unknown_words:
            console.print(Text(describe_unknown_words(self.unknown_words)), soft_wrap=True)
        for line in self._report_lines():
            console.print(Text(line, "yellow"), soft_wrap=True)
        console.print(histogram_table(self.sides, f"images by {self.size_name}"))

    def _report_lines(self) -> list[str]:
        lines = [*drop_lines(self.dropped, self.examples, self.messages), *self.notes]
        for oddity, count in sorted(self.converted.items(), key=lambda item: -item[1]):
            lines.append(f"converted when read: {count:,} {oddity}")
        if empty := [name for name, count in self.labels.items() if not count]:
            lines.append(f"no image has the label {empty[0]}" + (f", nor {len(empty) - 1} more" if empty[1:] else ""))
        return lines

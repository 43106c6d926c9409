"""What a build of images has to say: counts, what was left out and why, what is converted when it is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from data_pipeline.document import Dropped
from data_pipeline.images.folders import ImageShardResult
from data_pipeline.report import REPORT, histogram, left_out
from megaptm.console import Console
from megaptm.data.shards import Manifest
from megaptm.objectives.region_files import SUFFIX


@dataclass(frozen=True, kw_only=True)
class ImageReport:
    """Saved as `report.json` in the corpus; not part of its identity, since it holds times."""

    folder: str
    id: str
    splits: dict[str, dict[str, int]]
    """split -> images, bytes (of their files), shards"""
    labels: dict[str, int]
    """name -> images"""
    tokens: int
    """Of all texts; of labels one each."""
    dropped: dict[str, int]
    """reason -> images"""
    examples: dict[str, list[tuple[str, str]]]
    """reason -> where a few came from"""
    said: dict[str, str]
    """reason -> what is wrong with the first of them, where there is more to say"""
    converted: dict[str, int]
    """oddity -> images that are kept, and converted when they are read"""
    sides: dict[int, int]
    """2**i -> images whose shorter side has 2**i to 2**(i + 1) - 1 pixels; or so many regions"""
    regions: bool
    """Whether they are known by their regions"""
    workers: int
    found: int
    """Jobs that an earlier build had finished."""
    seconds: dict[str, float]
    """stage -> wall time"""

    @classmethod
    def of(
        cls,
        folder: str,
        manifest: Manifest,
        names: Sequence[str],
        results: Mapping[str, Sequence[ImageShardResult]],
        dropped: Dropped,
        *,
        workers: int,
        found: int,
        seconds: dict[str, float],
    ) -> ImageReport:
        """From the manifest and the account of each shard."""
        all_results = [one for some in results.values() for one in some]
        labels, oddities, sides = Counter[int](), Counter[str](), Counter[int]()
        for one in all_results:
            labels.update(one.labels)
            oddities.update(one.oddities)
            sides.update({1 << power: count for power, count in enumerate(one.sides) if count})
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
            said=dropped.said,
            converted=dict(oddities),
            sides=dict(sides),
            regions=SUFFIX in manifest.fields,
            workers=workers,
            found=found,
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
        who = f"{self.workers} Ray workers" if self.workers else "one process"
        what = f"{len(self.labels):,} labels" if self.labels else f"texts of {self.tokens:,} tokens"
        console.print(Text(f"{what}; {sum(self.seconds.values()):.1f} s with {who}"))
        for line in self._lines():
            console.print(Text(line, "yellow"), soft_wrap=True)
        by = "how many regions they have" if self.regions else "the pixels of their shorter side"
        console.print(histogram(self.sides, f"images by {by}"))

    def _lines(self) -> list[str]:
        lines = left_out(self.dropped, self.examples, self.said)
        for oddity, count in sorted(self.converted.items(), key=lambda item: -item[1]):
            lines.append(f"converted when read: {count:,} {oddity}")
        if empty := [name for name, count in self.labels.items() if not count]:
            lines.append(f"no image has the label {empty[0]}" + (f", nor {len(empty) - 1} more" if empty[1:] else ""))
        return lines

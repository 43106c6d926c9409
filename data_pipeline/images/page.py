"""Report of an image build as one HTML page, like `data_pipeline.page` for text.

It shows thumbnails of some kept images, and of some dropped ones for each reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from data_pipeline.images.report import ImageReport
from data_pipeline.images.thumbnails import DroppedImages, thumbnail
from data_pipeline.page import PAGE, bars, table, tiles, titled, whole_page
from megaptm.data.manifest import LABELS
from megaptm.data.shards import Corpus
from megaptm.objectives.pixels import SUFFIXES
from megaptm.tokenizers import Tokenizer

KEPT = 24
"""Images of the training split that are shown."""
MOST_BYTES = 512 << 10
"""Maximum bytes of all thumbnails on a page. Further images are listed by name only."""
CAPTION = 80
"""Maximum characters of a caption."""
COUNTS = ("images", "bytes", "shards")


@dataclass(frozen=True)
class Picture:
    """Image on the page: caption, and a `thumbnail` or an empty string."""

    caption: str
    content: str


def kept_pictures(folder: Path, tokenizer: Tokenizer) -> list[Picture]:
    """Return images evenly spread over the training split, with their labels or texts."""
    corpus = Corpus.open(folder)
    shards = corpus.split("train").shards
    begins = np.cumsum([0, *(info.samples for info in shards)])
    found = []
    for number in np.unique(np.linspace(0, begins[-1] - 1, KEPT).astype(int)):
        place = int(np.searchsorted(begins, number, side="right")) - 1
        shard, document = corpus.open_shard(shards[place]), int(number - begins[place])
        content = next((blob for name in SUFFIXES if (blob := shard.blob(name, document))), b"")
        tokens = shard.tokens(document)
        labels = corpus.manifest.dtype == LABELS
        said = tokenizer.name(int(tokens[0])) if labels else tokenizer.decode(tokens)
        found.append(Picture(said, thumbnail(content)))
    return found


def write_image_page(report: ImageReport, kept: Sequence[Picture], dropped: DroppedImages, folder: Path) -> None:
    """Write the page beside the corpus."""
    (folder / PAGE).write_text(whole_page(report.folder, _body(report, kept, dropped)), encoding="utf-8")


def _body(report: ImageReport, kept: Sequence[Picture], dropped: DroppedImages) -> Iterator[str]:
    show = _Shown()
    total = sum(counts["images"] for counts in report.splits.values())
    what = f"{len(report.labels):,} labels" if report.labels else f"texts of {report.tokens:,} tokens"
    yield f"<h1>Corpus {escape(report.folder)}</h1>"
    yield f"<p class=faint>id <code>{report.id}</code>; {what}</p>"
    yield tiles({name: f"{sum(one[name] for one in report.splits.values()):,}" for name in COUNTS})
    yield "<h2>Splits</h2>"
    rows = ([name, *(f"{counts[one]:,}" for one in COUNTS)] for name, counts in report.splits.items())
    yield table(("split", *COUNTS), rows)
    if kept:
        yield f"<h2>Kept: {len(kept)} of {total:,}</h2>{show.pictures(kept)}"
    yield "<h2>Left out</h2>"
    by_number = dict(sorted(report.dropped.items(), key=lambda item: -item[1]))
    found = total + sum(by_number.values())
    yield bars(by_number, share_of=found, lost=True) if by_number else "<p>Nothing was left out.</p>"
    for reason in by_number:
        few = [
            Picture(f"{source}: {text}" if text else source, dropped.picture(reason, number))
            for number, (source, text) in enumerate(report.examples.get(reason, ()))
        ]
        if few:
            said = f"<p>The first: {escape(report.said[reason])}.</p>" if reason in report.said else ""
            yield f"<details open><summary>{escape(reason)}: {len(few)} of {by_number[reason]:,}</summary>"
            yield f"{said}{show.pictures(few)}</details>"
    yield from titled("Converted when read", report.converted)
    yield f"<h2>Images by {'how many regions they have' if report.regions else 'pixels of their shorter side'}</h2>"
    yield bars({f"{low:,} to {2 * low - 1:,}": count for low, count in sorted(report.sides.items())})
    yield from titled("Labels", dict(sorted(report.labels.items(), key=lambda item: -item[1])[:50]))
    yield "<h2>Time</h2>" + bars(report.seconds, form="{:,.1f} s")


class _Shown:
    """Renders thumbnails until their total size reaches the maximum."""

    def __init__(self) -> None:
        self._room = MOST_BYTES

    def pictures(self, some: Iterable[Picture]) -> str:
        return f"<div class=pictures>{''.join(map(self._figure, some))}</div>"

    def _figure(self, one: Picture) -> str:
        image = ""
        if one.content and len(one.content) <= self._room:
            self._room -= len(one.content)
            image = f"<img alt='' src='data:image/jpeg;base64,{one.content}'>"
        caption = one.caption[:CAPTION] + (" ..." if len(one.caption) > CAPTION else "")
        return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"

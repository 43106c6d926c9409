"""Report of an image build as one HTML page, like `data_pipeline.page` for text.

It shows thumbnails of some kept images, and of some dropped ones for each reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_pipeline.page import PAGE
from megaptm.data.shards import Corpus
from megaptm.families.vit.corpus.report import ImageReport
from megaptm.families.vit.corpus.thumbnails import DroppedImages, make_thumbnail
from megaptm.families.vit.pixels import SUFFIXES
from megaptm.families.vit.token_types import LABELS
from megaptm.html import escape, full_page, html_bars, html_table, html_tiles, titled_bars
from megaptm.tokenizers import Tokenizer

NUM_VALID_SHOWN = 24
"""Number of images of the training split that the report page shows."""
MAX_BYTES = 512 << 10
"""Maximum bytes of all thumbnails on a report page. Further images are listed by name only."""
CAPTION = 80
"""Maximum characters of an image's caption on the report page."""
COUNTS = ("images", "bytes", "shards")


@dataclass(frozen=True)
class Picture:
    """Image on the report page of an image corpus: caption, and a `thumbnail` or an empty string."""

    caption: str
    content: str


def sample_pictures(folder: Path, tokenizer: Tokenizer) -> list[Picture]:
    """Return images evenly spread over the training split, with their labels or texts."""
    corpus = Corpus.open(folder)
    shards = corpus.split("train").shards
    first_samples = np.cumsum([0, *(info.samples for info in shards)])
    pictures = []
    for number in np.unique(np.linspace(0, first_samples[-1] - 1, NUM_VALID_SHOWN).astype(int)):
        shard_index = int(np.searchsorted(first_samples, number, side="right")) - 1
        shard, document = corpus.open_shard(shards[shard_index]), int(number - first_samples[shard_index])
        content = next((blob for name in SUFFIXES if (blob := shard.blob(name, document))), b"")
        tokens = shard.tokens(document)
        labels = corpus.manifest.dtype == LABELS
        caption = tokenizer.name(int(tokens[0])) if labels else tokenizer.decode(tokens)
        pictures.append(Picture(caption, make_thumbnail(content)))
    return pictures


def write_image_page(report: ImageReport, pictures: Sequence[Picture], dropped: DroppedImages, folder: Path) -> None:
    """Write the report page of an image corpus beside it."""
    (folder / PAGE).write_text(full_page(report.folder, _html_sections(report, pictures, dropped)), encoding="utf-8")


def _html_sections(report: ImageReport, valid_pictures: Sequence[Picture], dropped: DroppedImages) -> Iterator[str]:
    show = _ThumbnailRenderer()
    total = sum(counts["images"] for counts in report.splits.values())
    content = f"{len(report.labels):,} labels" if report.labels else f"texts of {report.tokens:,} tokens"
    yield f"<h1>Corpus {escape(report.folder)}</h1>"
    yield f"<p class=faint>id <code>{report.id}</code>; {content}</p>"
    yield from (f"<p class=note>{escape(note)}</p>" for note in report.notes)
    yield html_tiles({name: f"{sum(picture[name] for picture in report.splits.values()):,}" for name in COUNTS})
    yield "<h2>Splits</h2>"
    rows = ([name, *(f"{counts[picture]:,}" for picture in COUNTS)] for name, counts in report.splits.items())
    yield html_table(("split", *COUNTS), rows)
    if valid_pictures:
        yield f"<h2>In the corpus: {len(valid_pictures)} of {total:,}</h2>{show.pictures(valid_pictures)}"
    yield "<h2>Dropped</h2>"
    by_number = dict(sorted(report.dropped.items(), key=lambda item: -item[1]))
    pictures = total + sum(by_number.values())
    yield html_bars(by_number, share_of=pictures, lost=True) if by_number else "<p>No image was dropped.</p>"
    for reason in by_number:
        few = [
            Picture(f"{source}: {text}" if text else source, dropped.example_thumbnail(reason, number))
            for number, (source, text) in enumerate(report.examples.get(reason, ()))
        ]
        if few:
            caption = f"<p>The first: {escape(report.messages[reason])}.</p>" if reason in report.messages else ""
            yield f"<details open><summary>{escape(reason)}: {len(few)} of {by_number[reason]:,}</summary>"
            yield f"{caption}{show.pictures(few)}</details>"
    yield from titled_bars("Converted when read", report.converted)
    yield f"<h2>Images by {report.size_name}</h2>"
    yield html_bars({f"{low:,} to {2 * low - 1:,}": count for low, count in sorted(report.sides.items())})
    yield from titled_bars("Labels", dict(sorted(report.labels.items(), key=lambda item: -item[1])[:50]))
    yield "<h2>Time</h2>" + html_bars(report.seconds, form="{:,.1f} s")


class _ThumbnailRenderer:
    """Renderer of thumbnails until their total size reaches the maximum."""

    def __init__(self) -> None:
        self._room = MAX_BYTES

    def pictures(self, pictures_: Iterable[Picture]) -> str:
        return f"<div class=pictures>{''.join(map(self._make_figure, pictures_))}</div>"

    def _make_figure(self, counts: Picture) -> str:
        image = ""
        if counts.content and len(counts.content) <= self._room:
            self._room -= len(counts.content)
            image = f"<img alt='' src='data:image/jpeg;base64,{counts.content}'>"
        caption = counts.caption[:CAPTION] + (" ..." if len(counts.caption) > CAPTION else "")
        return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"

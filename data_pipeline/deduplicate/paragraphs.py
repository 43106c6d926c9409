"""Remove repeated paragraphs from the later documents, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from data_pipeline.clean.step import with_text
from data_pipeline.deduplicate.buckets import PartListing, Run
from data_pipeline.deduplicate.exact import DUPLICATE, entries_between, find_equal_entries
from data_pipeline.deduplicate.files import PartFile, read_part, write_part
from data_pipeline.deduplicate.options import Deduplicate
from data_pipeline.deduplicate.split import repeatable_paragraphs, without_paragraphs
from data_pipeline.deduplicate.tables import load_table
from data_pipeline.document import Document, DropCounts

ONLY_REPEATED = "only repeated paragraphs"


@dataclass(frozen=True)
class CutJob:
    """Job that rewrites a part without duplicate documents and paragraphs."""

    listing: PartListing
    number: int
    """Index of the part that the job rewrites."""
    first_paragraph: int
    documents: tuple[str, ...]
    paragraphs: tuple[str, ...]
    """Files of repeated paragraphs, see `EqualJob.path`."""
    options: Deduplicate

    @property
    def stem(self) -> str:
        return self.listing.name(f"cut-{self.number:06d}")


@dataclass(frozen=True)
class CutPart:
    """Part without repeated paragraphs, as a job returns it."""

    stem: str
    documents: int
    dropped: DropCounts
    paragraphs: int
    """Number of paragraphs removed from documents that are not exact duplicates."""
    characters: int


def cut_paragraphs(parts: Sequence[PartFile], options: Deduplicate, run: Run, folder: str) -> list[CutPart]:
    """Remove repeated paragraphs: write new parts to `folder`, with the sketches that `find.find_duplicates` needs;
    return them in the order of `parts`."""
    assert options.paragraphs is not None
    listing = PartListing.write(folder, parts, options)
    counts = [load_table(f"{part.stem}.paragraphs.npy").shape[1] for part in parts]
    first_paragraphs = np.cumsum([0, *counts]).tolist()
    documents = find_equal_entries(listing, "digests", int(listing.first_rows[-1]), run) if options.documents else []
    paragraphs = find_equal_entries(listing, "paragraphs", first_paragraphs[-1], run)
    jobs = [
        CutJob(listing, number, first_paragraphs[number], tuple(documents), tuple(paragraphs), options)
        for number in range(len(parts))
    ]
    results: list[CutPart] = run("repeated paragraphs", _cut_part, jobs)
    return [replace(cut, stem=job.stem) for cut, job in zip(results, jobs, strict=True)]


def _cut_part(job: CutJob) -> CutPart:
    """Rewrite a part without duplicate documents and repeated paragraphs. There are no effects besides the files of the
    new part."""
    cutting = _ParagraphCutter(job)
    # The texts are final now, so sketches for near duplicates can be written.
    count = write_part(job.stem, cutting.documents(), replace(job.options, paragraphs=None))
    return CutPart(job.stem, count, cutting.dropped, cutting.paragraphs, cutting.characters)


class _ParagraphCutter:
    """Removal of duplicates from one part, with counts."""

    def __init__(self, job: CutJob):
        assert job.options.paragraphs is not None
        self._options = job.options.paragraphs
        self._stem = job.listing.stems[job.number]
        first_paragraphs = job.listing.first_rows[job.number : job.number + 2].tolist()
        self._equal = _is_listed(job.documents, first_paragraphs[0], first_paragraphs[1] - first_paragraphs[0])
        paragraphs = load_table(f"{self._stem}.paragraphs.npy").shape[1]
        self._repeated = _is_listed(job.paragraphs, job.first_paragraph, paragraphs)
        self.dropped, self.paragraphs, self.characters = DropCounts(), 0, 0

    def documents(self) -> Iterator[Document]:
        at = 0
        for document, equal_to_another in zip(read_part(self._stem), self._equal, strict=True):
            count = len(repeatable_paragraphs(document, self._options))
            repeated = self._repeated[at : at + count]
            at += count
            if equal_to_another:
                self.dropped.add(DUPLICATE, document.source, document.text)
            elif not repeated.any():
                yield document
            elif (text := without_paragraphs(document, repeated.tolist(), self._options)).strip():
                self._count_cut_text(document, text, repeated)
                yield with_text(document, text)
            else:
                self._count_cut_text(document, text, repeated)
                self.dropped.add(ONLY_REPEATED, document.source, document.text)

    def _count_cut_text(self, document: Document, text: str, repeated: np.ndarray) -> None:
        self.paragraphs += int(np.count_nonzero(repeated))
        self.characters += len(document.text) - len(text)


def _is_listed(paths: Sequence[str], begin: int, count: int) -> np.ndarray:
    """Return for each index from `begin` on whether a file of repeated paragraphs lists it, bool [count]."""
    marked = np.zeros(count, bool)
    for numbers, _ in entries_between(paths, begin, begin + count):
        marked[numbers - begin] = True
    return marked

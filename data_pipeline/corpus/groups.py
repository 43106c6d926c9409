"""Groups of documents, by domain and by bucket of a quality score. A shard has documents of one group, so that a mix
selects groups without reading documents (`megaptm.data.groups`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.corpus.parts import Part
from data_pipeline.corpus.selection import HASH_LIMIT, DocumentRows, Selection
from data_pipeline.corpus.work import JobRunner, job_key
from data_pipeline.deduplicate import read_part
from data_pipeline.deduplicate.minhash import mix_bits
from data_pipeline.deduplicate.tables import load_table, save_table
from data_pipeline.document import Document
from data_pipeline.grouping import Grouping
from megaptm.errors import UserError
from megaptm.storage import is_finite_number

NO_SCORE, NO_DOMAIN, BELOW, NOT_SAMPLED = -1, -2, -3, -4
"""Group of documents that are dropped."""
MAX_DOMAINS = 1000


@dataclass(frozen=True)
class DocumentGroupsJob:
    """Job that finds the groups of the documents of a part."""

    folder: str
    stem: str
    grouping: Grouping

    @property
    def path(self) -> str:
        """Path of the table, int32 [documents]: bucket of the quality score, plus the index of the domain in the part
        times the number of buckets."""
        return str(Path(self.folder, f"{job_key(_find_document_groups, self)}.groups.npy"))


def _find_document_groups(job: DocumentGroupsJob) -> list[str]:
    """Find the groups of the documents of a part; return the domains of the part."""
    grouping, domains = job.grouping, dict[str, int]()
    groups = []
    for document in read_part(job.stem):
        groups.append(_group_of(document, grouping, domains))
        if len(domains) > MAX_DOMAINS:  # an error; a note such as a title would fill the memory
            break
    save_table(job.path, np.array(groups, dtype=np.int32))
    return [*domains]


def _group_of(document: Document, grouping: Grouping, domains: dict[str, int]) -> int:
    bucket = 0
    if grouping.quality:
        score = document.notes.get(grouping.note)
        if not is_finite_number(score):
            return NO_SCORE
        score = float(score)
        if score < grouping.quality[0]:
            return BELOW
        bucket = min(int(np.searchsorted(grouping.quality, score, side="right")) - 1, grouping.num_buckets - 1)
    if grouping.domain is None:
        return bucket
    domain = document.notes.get(grouping.domain)
    if not isinstance(domain, str) or not domain:
        return NO_DOMAIN
    return domains.setdefault(domain, len(domains)) * grouping.num_buckets + bucket


@dataclass(frozen=True)
class CorpusGroups:
    """Groups of all documents of a corpus."""

    grouping: Grouping
    parts: Sequence[Part]
    domains: list[str]
    """Domains of the corpus, sorted; one without a name if documents have no domains."""
    tables: list[tuple[str, list[str]]]
    """Table of each part (`DocumentGroupsJob.path`) and its domains."""

    @property
    def count(self) -> int:
        return len(self.domains) * self.grouping.num_buckets

    def groups_of(self, part: int) -> np.ndarray:
        """Return the group of each document of a part, or a negative number for those that are dropped, int32
        [documents]."""
        path, own_domains = self.tables[part]
        groups, buckets = load_table(path), self.grouping.num_buckets
        if not len(groups):
            return groups
        numbers = np.array([self.domains.index(name) for name in own_domains] or [0], dtype=np.int32)
        domain, bucket = np.divmod(np.maximum(groups, 0), buckets)
        shared = np.where(groups < 0, groups, numbers[domain] * buckets + bucket).astype(np.int32)
        if self.grouping.shares:
            bounds = np.array([min(int(share * HASH_LIMIT), HASH_LIMIT - 1) for share in self.grouping.shares], "<u8")
            sampled = mix_bits(np.array(self.parts[part].digests[:, 0])) <= bounds[bucket]
            sampled &= np.array(self.grouping.shares)[bucket] > 0
            shared = np.where((shared >= 0) & ~sampled, NOT_SAMPLED, shared)
        return shared

    def restrict(self, stays: Callable[[int], np.ndarray]) -> Callable[[int], np.ndarray]:
        """Return a function from a part to bool [documents]: the documents of `stays` that are in a group."""
        return lambda part: stays(part) & (self.groups_of(part) >= 0)

    def count_dropped(self, part: int, retained: np.ndarray) -> Counter[str]:
        """Count the documents of a part that are dropped, of those that deduplication retained."""
        grouping = self.grouping
        groups = self.groups_of(part)[retained]
        reasons = {
            NO_SCORE: f"no {grouping.note}",
            NO_DOMAIN: f"no {grouping.domain}",
            BELOW: f"{grouping.note} below {grouping.quality[0]:g}" if grouping.quality else "",
            NOT_SAMPLED: "not sampled (groups.shares)",
        }
        counts: Counter[str] = Counter()
        for code, reason in reasons.items():  # two codes have one reason if `note` is `domain`
            counts[reason] += int((groups == code).sum())
        return +counts

    def rows_by_group(self, selection: Selection, split: str) -> Iterator[tuple[int, list[DocumentRows]]]:
        """Yield the documents of each group of a split, part by part. Memory: 8 bytes per document."""
        rows: list[list[DocumentRows]] = [[] for _ in range(self.count)]
        for part, selected in selection.rows_by_part(split):
            groups = self.groups_of(part)[selected]
            for group in np.unique(groups).tolist():
                rows[group].append((part, selected[groups == group]))
        yield from enumerate(rows)

    def for_manifest(self, shards: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Return the groups of a corpus for its manifest. `shards`: split -> group of each of its shards."""
        counts = {split: np.bincount(groups, minlength=self.count).tolist() for split, groups in shards.items()}
        return {"quality": list(self.grouping.quality), "domains": self.domains, "shards": counts}


def read_groups(grouping: Grouping, parts: Sequence[Part], work: JobRunner) -> CorpusGroups:
    """Find the groups of all documents of a corpus."""
    folder = work.folder / "groups"
    folder.mkdir(exist_ok=True)
    unsampled = replace(grouping, shares=())  # other shares find the same tables
    jobs = [DocumentGroupsJob(str(folder), part.stem, unsampled) for part in parts]
    domains = work.run("group", _find_document_groups, jobs)
    names = sorted({name for own in domains for name in own})
    if len(names) > MAX_DOMAINS:
        raise UserError(
            f"groups.domain: the note {grouping.domain} has {len(names):,} values ({names[0]}, {names[1]} and "
            f"others), more than {MAX_DOMAINS:,}: name a note with fewer."
        )
    tables = [(job.path, own) for job, own in zip(jobs, domains, strict=True)]
    return CorpusGroups(grouping, parts, names or [""], tables)

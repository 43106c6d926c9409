"""Shards of a corpus beside its manifest: is each there, of its size and bytes, and is its index true?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from megaptm.check.finding import Case, Finding, counted
from megaptm.data import Corpus
from megaptm.data.files import npy_bytes
from megaptm.data.shards import TOKENS_AT, Shard, ShardInfo, damaged, misfit
from megaptm.errors import UserError
from megaptm.storage import Patience, hash_of, join, listed

SAMPLE_BYTES = 1 << 30
"""Read of a corpus unless all is asked for: a second or two from a disk."""
SAMPLE_DOCUMENTS = 10_000
"""Looked up in the index of a shard unless all are asked for."""
THREADS = 4
MOST_TOLD = 5
"""Damaged shards of a corpus that are told one by one."""


def look_at_shards(case: Case, corpus: Corpus) -> Iterator[Finding]:
    """A fault for each shard that is not the manifest's, or one good finding for all."""
    shards = [info for split in corpus.manifest.splits.values() for info in split.shards]
    sizes = listed(corpus.name, _patience(corpus))
    problems = [problem for info in shards if (problem := misfit(corpus.name, info, sizes))]
    chosen = _chosen(case, [] if problems else shards)
    problems += _damaged(case, corpus, chosen)
    for problem in problems[:MOST_TOLD]:
        yield Finding("data", "fault", problem)
    if len(problems) > MOST_TOLD:
        yield Finding("data", "fault", f"{corpus.name}: {len(problems) - MOST_TOLD:,} more of its shards are so.")
    if not problems:
        yield _good(corpus, shards, chosen)


def _good(corpus: Corpus, shards: Sequence[ShardInfo], hashed: Sequence[ShardInfo]) -> Finding:
    read = sum(info.size for info in hashed)
    numbers = {
        "corpus": corpus.name,
        "shards": len(shards),
        "bytes": sum(info.size for info in shards),
        "tokens": sum(info.tokens for info in shards),
        "hashed_shards": len(hashed),
        "hashed_bytes": read,
    }
    whose = "all" if len(hashed) == len(shards) else f"{len(hashed):,}"
    bytes_ = f"{whose} hashed ({read / 2**20:,.1f} MiB)" if hashed else "none hashed"
    shard = counted(len(shards), "shard", "shards")
    says = f"{corpus.name}: {shard} of {numbers['tokens']:,} tokens, each of its size; {bytes_}."
    return Finding("data", "good", says, numbers)


def _chosen(case: Case, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
    """Those whose bytes are read; a sample is another one each time."""
    if case.hashing == "all":
        return list(shards)
    drawn: list[ShardInfo] = []
    left = SAMPLE_BYTES if case.hashing == "some" else 0
    for info in random.sample(shards, len(shards)) if left else ():
        if left <= 0:
            break
        drawn.append(info)
        left -= info.size
    return drawn


def _damaged(case: Case, corpus: Corpus, shards: Sequence[ShardInfo]) -> list[str]:
    """What is wrong with the bytes of these shards."""
    problems = []
    with ThreadPoolExecutor(THREADS) as threads:
        work = {threads.submit(_wrong_hash, corpus, info): info for info in shards}
        for done, future in enumerate(as_completed(work), start=1):
            case.tell(f"{corpus.name}: {done:,} of {len(shards):,} shards read")
            if problem := future.result() or _wrong_index(case, corpus, work[future]):
                problems.append(problem)
    return sorted(problems)


def _wrong_hash(corpus: Corpus, info: ShardInfo) -> str | None:
    for name, expected in info.hashes.items():
        file = join(corpus.name, name)
        if hash_of(file, _patience(corpus)) != expected:
            return damaged(file)
    return None


def _wrong_index(case: Case, corpus: Corpus, info: ShardInfo) -> str | None:
    """Of a shard whose bytes are those that were written; one that is elsewhere is not fetched for that."""
    if corpus.mirror:
        return None
    try:
        shard = corpus.open_shard(info, "none")
    except UserError as error:
        return str(error)
    most = None if case.hashing == "all" else SAMPLE_DOCUMENTS
    wrong = lies(shard, info, corpus.manifest.tokenizer["vocabulary"], most)
    return f"{join(corpus.name, info.name)}: {wrong}; build the corpus again." if wrong else None


def lies(shard: Shard, info: ShardInfo, vocabulary: int, most: int | None) -> str | None:
    """What the index says of a shard that is not so; `most` documents are looked up."""
    places = shard.index[:, TOKENS_AT : TOKENS_AT + 2]
    if int(places[:, 1].sum()) != info.tokens:
        return f"{info.index_name} counts {int(places[:, 1].sum()):,} tokens where the manifest says {info.tokens:,}"
    for document, (at, count) in enumerate(places[:most].tolist()):
        if not _lies_there(shard, document, at, count):
            return f"{info.index_name} finds no document of {count:,} tokens at byte {at:,}"
        largest = int(shard.tokens(document).max())
        if largest >= vocabulary:
            return f"a document has id {largest:,}, beyond the {vocabulary:,} of the tokenizer"
    return None


def _lies_there(shard: Shard, document: int, at: int, count: int) -> bool:
    """Whether the tar has an array of so many tokens there: its header ends where they begin."""
    size = count * shard.dtype.itemsize
    if not 0 < size <= len(shard.content) - at:
        return False
    header = npy_bytes(shard.tokens(document))[:-size]
    return shard.content[max(0, at - len(header)) : at] == header


def _patience(corpus: Corpus) -> Patience:
    return corpus.mirror.cache.patience if corpus.mirror else Patience()

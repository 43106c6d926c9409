"""Check of the corpora: shards and tokenizers against the manifests, and the amount of text against the steps."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path

from megaptm.check.finding import Case, Finding, counted
from megaptm.config import Config
from megaptm.data import Corpus
from megaptm.data.files import npy_bytes
from megaptm.data.mix import Mix
from megaptm.data.shards import TOKENS_AT, CaptionedShard, LabeledShard, Shard, ShardInfo, damaged, size_mismatch
from megaptm.data.stream_order import DocumentOrder
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved
from megaptm.run.corpora import (
    RunCorpora,
    cache_of,
    check_epochs,
    check_kept_logits,
    check_vocabulary,
    open_corpus,
    tokenizer_of,
)
from megaptm.run.initial import check_initial, initial_run
from megaptm.run.teacher import check_teacher
from megaptm.storage import RetryPolicy, hash_of, join, listed, plain_file

TIMEOUT_SECONDS = 20.0
"""Timeout for a server of corpora. A run waits longer (data.patience) than a user at a terminal."""
MANY_EPOCHS = 40
"""BERT had about this many epochs (arXiv:1810.04805, section A.2); more is unusual and gives a warning."""
SAMPLE_BYTES = 1 << 30
"""Bytes read of a corpus without --full: a second or two from a disk."""
SAMPLE_DOCUMENTS = 10_000
"""Documents looked up in the index of a shard without --full."""
THREADS = 4
MOST_TOLD = 5
"""Damaged shards of a corpus that are reported individually."""


def corpora(case: Case) -> Iterator[Finding]:
    """Check each corpus, then their mix, if all corpora and the config are valid."""
    with away_from_the_cache(case.config) as config:
        case = replace(case, config=config)
        good = True
        for place in config.data.mix:
            for finding in _corpus(case, place):
                good = good and finding.state != "fault"
                yield finding
        if good and not case.mistakes:
            yield from _mix(config)
        elif not case.mistakes:
            check_initial(config, None)
    yield from _vectors(case.config)


def _vectors(config: Config) -> Iterator[Finding]:
    """Check that the file of initial word vectors can be opened; its content is read when the run starts."""
    if (path := config.model.vectors) is None or last_saved(Path(config.run)):
        return
    try:
        with plain_file(path).open("rb"):
            yield Finding("data", "good", f"model.vectors ({path}) can be read.")
    except OSError as error:
        yield Finding("data", "fault", f"model.vectors ({path}) cannot be read ({error.strerror}): correct the path.")


@contextmanager
def away_from_the_cache(config: Config) -> Iterator[Config]:
    """Yield the config with a temporary cache and a short timeout.

    Shards are checked here, so they are not verified again when opened.
    """
    with tempfile.TemporaryDirectory(prefix="megaptm-check-") as cache:
        seconds = min(TIMEOUT_SECONDS, config.data.patience)
        data = config.data.model_copy(update={"cache": cache, "patience": seconds, "verify": "none"})
        yield config.model_copy(update={"data": data})


def _corpus(case: Case, place: str) -> Iterator[Finding]:
    case.tell(f"opening {place}")
    try:
        corpus = Corpus.open(place, cache_of(case.config)) if case.mistakes else open_corpus(place, case.config)
        yield from look_at_shards(case, corpus)
        tokenizer = tokenizer_of(corpus)
        if not case.mistakes:
            check_vocabulary(case.config, tokenizer, place)
    except UserError as error:
        yield Finding("data", "fault", str(error))
        return
    yield Finding(
        "data",
        "good",
        f"{place}: its tokenizer ({tokenizer.kind}, {tokenizer.vocabulary:,} ids) is the one it was made with.",
        {"corpus": place, "tokenizer": tokenizer.fingerprint, "vocabulary": tokenizer.vocabulary},
    )


def _mix(config: Config) -> Iterator[Finding]:
    """Check that corpora, tokenizer and objective match, and that there is enough text."""
    corpora, train = RunCorpora(config), config.train
    if config.distill is not None:
        check_teacher(config, corpora.tokenizer)
        yield Finding(
            "data",
            "good",
            f"{config.distill.teacher}: the teacher is there, is what distill.model says, and reads the same tokens.",
            {"teacher": config.distill.teacher, "step": config.distill.step},
        )
    check_initial(config, corpora.tokenizer)
    if (initial := initial_run(config)) is not None:
        yield Finding(
            "data", "good", f"{initial.folder}: the run that this one begins with is there, and of its model."
        )
    if config.built_objective.unit == "pairs":
        corpora.check()
        tokens = corpora.tokens("train")
        yield Finding(
            "data", "good", f"pairs of {tokens:,.0f} words are counted when the run begins.", {"tokens": tokens}
        )
        return
    text = corpora.mix("train")
    check_epochs(config, text)
    validation = corpora.mix("validation")
    held_out = validation.fresh_batches(train.batch)
    check_kept_logits(config, {"train": text, "validation": validation})
    samples = config.batch_schedule.first(train.steps)
    yield Finding(
        "data",
        "good",
        f"{samples:,} rows of {config.data.sequence:,} tokens are read in {train.steps:,} steps; {held_out:,} batches "
        "are held out.",
        {"rows": samples, "held_out_batches": held_out},
    )
    yield from _epochs(config, text, samples)
    yield from _without_room(config, text)


def _epochs(config: Config, text: Mix, samples: int) -> Iterator[Finding]:
    for order, (place, read) in zip(text.orders, text.cursors(samples).items(), strict=True):
        epochs = read / order.per_epoch
        many = epochs > MANY_EPOCHS and config.data.epochs is None
        yield Finding(
            "data",
            "warning" if many else "good",
            f"{place} is read {epochs:,.2f} times"
            + (
                f": build it from more text, lower train.steps, or set data.epochs={-(-read // order.per_epoch)} if "
                "that is meant."
                if many
                else "."
            ),
            {"corpus": place, "epochs": epochs},
        )


def _without_room(config: Config, text: Mix) -> Iterator[Finding]:
    """Yield a warning for each corpus with documents that fit into no sample, based on one of its shards."""
    for source in text.sources:
        order, sequence = source.order, config.data.sequence
        if not isinstance(order, DocumentOrder) or order.corpus.mirror:  # a remote shard is not downloaded for this
            continue
        if source.task.objective.blobs:  # an image fits into any sample
            continue
        documents = [*islice(order.documents(random.randrange(len(order.shards))), SAMPLE_DOCUMENTS)]
        if lost := sum(not source.task.objective.has_room(document, sequence) for document in documents):
            yield Finding(
                "data",
                "warning",
                f"{source.name}: of {len(documents):,} documents looked at {lost:,} are longer than a row, and are "
                f"never read: raise data.sequence ({sequence}), or build the corpus without them.",
                {"corpus": source.corpus, "documents": len(documents), "without_room": lost},
            )


def look_at_shards(case: Case, corpus: Corpus) -> Iterator[Finding]:
    """Yield a fault for each shard that differs from the manifest, or one good finding for all."""
    shards = [info for split in corpus.manifest.splits.values() for info in split.shards]
    sizes = _sizes(corpus)
    problems = [problem for info in shards if (problem := size_mismatch(corpus.name, info, sizes))]
    chosen = _chosen(case, [] if problems else shards)
    problems += _damaged(case, corpus, chosen)
    for problem in problems[:MOST_TOLD]:
        yield Finding("data", "fault", problem)
    if len(problems) > MOST_TOLD:
        yield Finding("data", "fault", f"{corpus.name}: {len(problems) - MOST_TOLD:,} more of its shards are so.")
    if not problems:
        yield _good(corpus, shards, chosen)


def _sizes(corpus: Corpus) -> dict[str, int]:
    """Return file -> bytes, including shards in other locations."""
    sizes, places = listed(corpus.name, _retry(corpus)), corpus.mirror.addresses if corpus.mirror else {}
    folders = {url.rpartition("/")[0] for url in places.values()}
    there = {join(folder, name): size for folder in folders for name, size in listed(folder, _retry(corpus)).items()}
    return sizes | {name: there[url] for name, url in places.items() if url in there}


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
    """Return the shards whose content is read; a sample is random each time."""
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
    """Return the problems found in the content of these shards."""
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
        file = corpus.address_of(name)
        if hash_of(file, _retry(corpus)) != expected:
            return damaged(file)
    return None


def _wrong_index(case: Case, corpus: Corpus, info: ShardInfo) -> str | None:
    """Return the problem of the index of an undamaged shard. A remote shard is not downloaded for this."""
    if corpus.mirror:
        return None
    try:
        shard = corpus.open_shard(info, "none")
    except UserError as error:
        return str(error)
    most = None if case.hashing == "all" else SAMPLE_DOCUMENTS
    wrong = index_mistake(shard, info, corpus.manifest.tokenizer["vocabulary"], most)
    return f"{join(corpus.name, info.name)}: {wrong}; build the corpus again." if wrong else None


def index_mistake(shard: Shard, info: ShardInfo, vocabulary: int, most: int | None) -> str | None:
    """Return a statement of the index that does not hold for its shard, or None; `most` documents are looked up."""
    places = shard.index[:, TOKENS_AT : TOKENS_AT + 2]
    if int(places[:, 1].sum()) != info.tokens:
        return f"{info.index_name} counts {int(places[:, 1].sum()):,} tokens where the manifest says {info.tokens:,}"
    for document, (at, count) in enumerate(places[:most].tolist()):
        if not isinstance(shard, LabeledShard | CaptionedShard) and not _lies_there(shard, document, at, count):
            return f"{info.index_name} finds no document of {count:,} tokens at byte {at:,}"
        largest = int(shard.tokens(document).max())
        if largest >= vocabulary:
            return f"a document has id {largest:,}, beyond the {vocabulary:,} of the tokenizer"
    return None


def _lies_there(shard: Shard, document: int, at: int, count: int) -> bool:
    """Whether the tar file has an array of this many tokens there; its header ends where the tokens start."""
    size = count * shard.dtype.itemsize
    if not 0 < size <= shard.content.size - at:
        return False
    header = npy_bytes(shard.tokens(document))[:-size]
    return shard.content.read(max(0, at - len(header)), min(at, len(header))) == header


def _retry(corpus: Corpus) -> RetryPolicy:
    return corpus.mirror.cache.retry if corpus.mirror else RetryPolicy()

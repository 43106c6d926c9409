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

from megaptm.check.finding import CheckInput, Finding, number_with_noun
from megaptm.config import Config
from megaptm.config.phases import phase_end
from megaptm.data import Corpus
from megaptm.data.files import npy_bytes
from megaptm.data.mix import Mix
from megaptm.data.shards import (
    TOKENS_AT,
    Shard,
    ShardInfo,
    damaged_message,
    describe_size_mismatch,
)
from megaptm.data.stream_order import DocumentOrder
from megaptm.errors import UserError
from megaptm.resilience.events import last_saved_step
from megaptm.run.corpora import (
    RunCorpora,
    check_vocabulary,
    corpus_cache,
    load_corpus_tokenizer,
    open_corpus,
)
from megaptm.run.corpora_checks import check_epochs
from megaptm.run.hooks import run_hooks
from megaptm.run.initial import check_initial_run, initial_run
from megaptm.storage import RetryPolicy, file_sha256, join_path, list_files, regular_file

TIMEOUT_SECONDS = 20.0
"""Timeout for a server of corpora. It is shorter than that of a run (data.timeout_seconds): a user is waiting."""
MANY_EPOCHS = 40
"""Number of epochs above which a check warns: about that of BERT (arXiv:1810.04805, section A.2)."""
SAMPLE_BYTES = 1 << 30
"""Bytes of a corpus that are checked without --full: a second or two from a disk."""
SAMPLE_DOCUMENTS = 10_000
"""Number of documents of a shard's index that are checked without --full."""
THREADS = 4
MAX_REPORTED = 5
"""Maximum number of damaged shards of a corpus that are reported individually."""


def check_data(case: CheckInput) -> Iterator[Finding]:
    """Check each corpus of a run, then their mix, if all corpora and the config are valid."""
    with with_temporary_cache(case.config) as config:
        case = replace(case, config=config)
        are_valid = True
        for location in config.data.corpora:
            for finding in _check_corpus(case, location):
                are_valid = are_valid and finding.state != "fault"
                yield finding
        if are_valid and not case.config_errors:
            yield from _check_mix(config)
        elif not case.config_errors:
            check_initial_run(config, None)
    yield from _check_vectors(case.config)


def _check_vectors(config: Config) -> Iterator[Finding]:
    """Check that the file of initial word vectors can be opened; its content is read when the run starts."""
    if (path := config.model.word_vectors) is None or last_saved_step(Path(config.run)):
        return
    try:
        with regular_file(path).open("rb"):
            yield Finding("data", "ok", f"model.word_vectors ({path}) can be read.")
    except OSError as error:
        yield Finding(
            "data", "fault", f"model.word_vectors ({path}) cannot be read ({error.strerror}): correct the path."
        )


@contextmanager
def with_temporary_cache(config: Config) -> Iterator[Config]:
    """Yield the config with a temporary cache and a short timeout, for checks of corpora.

    Shards are checked here, so they are not verified again when opened.
    """
    with tempfile.TemporaryDirectory(prefix="megaptm-check-") as cache:
        seconds = min(TIMEOUT_SECONDS, config.data.timeout_seconds)
        data = config.data.model_copy(update={"cache_dir": cache, "timeout_seconds": seconds, "verify": "none"})
        yield config.model_copy(update={"data": data})


def _check_corpus(case: CheckInput, location: str) -> Iterator[Finding]:
    case.tell(f"opening {location}")
    try:
        corpus = (
            Corpus.open(location, corpus_cache(case.config))
            if case.config_errors
            else open_corpus(location, case.config)
        )
        yield from check_shards(case, corpus)
        tokenizer = load_corpus_tokenizer(corpus)
        if not case.config_errors:
            check_vocabulary(case.config, tokenizer, location)
    except UserError as error:
        yield Finding("data", "fault", str(error))
        return
    yield Finding(
        "data",
        "ok",
        f"{location}: the tokenizer ({tokenizer.kind}, {tokenizer.vocabulary:,} ids) matches the manifest.",
        {"corpus": location, "tokenizer": tokenizer.fingerprint, "vocabulary": tokenizer.vocabulary},
    )


def _check_mix(config: Config) -> Iterator[Finding]:
    """Check that corpora, tokenizer and objective match, and that there is enough text."""
    corpora, train = RunCorpora(config), config.train
    for hook in run_hooks(config):
        if (checked := hook.check(config, corpora.tokenizer)) is not None:
            yield Finding("data", "ok", *checked)
    check_initial_run(config, corpora.tokenizer)
    if (initial := initial_run(config)) is not None:
        yield Finding(
            "data", "ok", f"{initial.folder}: the run with the initial weights exists and has the same model."
        )
    if config.built_objective.unit == "pairs":
        corpora.check()
        tokens = corpora.tokens("train")
        yield Finding(
            "data", "ok", f"word pairs of {tokens:,.0f} words are counted when the run starts.", {"tokens": tokens}
        )
        return
    text = corpora.mix("train")
    check_epochs(config, text)
    validation = corpora.mix("validation")
    held_out = validation.fresh_batches(train.batch)
    sets = corpora.validation_mixes()
    for hook in run_hooks(config):
        hook.check_samples(config, {"train": text, "validation": validation})
    end = phase_end(config, train.phase_start)
    samples = config.batch_schedule.first_sample(end)
    yield Finding(
        "data",
        "ok",
        f"{end:,} steps read {samples:,} samples of {config.data.sequence:,} tokens; {held_out:,} batches are "
        "held out" + "".join(f", {mix.fresh_batches(train.batch):,} of {name}" for name, mix in sets.items()) + ".",
        {"samples": samples, "held_out_batches": held_out},
    )
    yield from _check_epochs(config, text, samples)
    yield from _check_sample_length(config, text)


def _check_epochs(config: Config, text: Mix, samples: int) -> Iterator[Finding]:
    for order, (location, read) in zip(text.orders, text.cursors(samples).items(), strict=True):
        epochs = read / order.per_epoch
        is_too_often = epochs > MANY_EPOCHS and config.data.epochs is None
        yield Finding(
            "data",
            "warning" if is_too_often else "ok",
            f"{location} is read {epochs:,.2f} times"
            + (
                f": build it from more text, lower train.steps, or, if this is intended, set "
                f"data.epochs={-(-read // order.per_epoch)}."
                if is_too_often
                else "."
            ),
            {"corpus": location, "epochs": epochs},
        )


def _check_sample_length(config: Config, text: Mix) -> Iterator[Finding]:
    """Yield a warning for each corpus with documents that fit into no sample, judged by one of its shards."""
    for source in text.sources:
        order, sequence = source.order, config.data.sequence
        if not isinstance(order, DocumentOrder) or order.corpus.mirror:  # a remote shard is not downloaded for this
            continue
        if source.task.objective.blobs:  # an image fits into any sample
            continue
        documents = [*islice(order.documents(random.randrange(len(order.shards))), SAMPLE_DOCUMENTS)]
        if too_long := sum(not source.task.objective.fits(document, sequence) for document in documents):
            yield Finding(
                "data",
                "warning",
                f"{source.name}: {too_long:,} of {len(documents):,} documents are longer than a sample and are never "
                f"read: raise data.sequence ({sequence}), or build the corpus without them.",
                {"corpus": source.corpus, "documents": len(documents), "too_long": too_long},
            )


def check_shards(case: CheckInput, corpus: Corpus) -> Iterator[Finding]:
    """Yield a fault for each shard that differs from the manifest, or one good finding for all."""
    shards = [info for split in corpus.manifest.splits.values() for info in split.shards]
    sizes = _file_sizes(corpus)
    problems = [problem for info in shards if (problem := describe_size_mismatch(corpus.name, info, sizes))]
    sample = _sample_shards(case, [] if problems else shards)
    problems += _find_damage(case, corpus, sample)
    for problem in problems[:MAX_REPORTED]:
        yield Finding("data", "fault", problem)
    if len(problems) > MAX_REPORTED:
        yield Finding(
            "data", "fault", f"{corpus.name}: {len(problems) - MAX_REPORTED:,} more shards have such problems."
        )
    if not problems:
        yield _shards_finding(corpus, shards, sample)


def _file_sizes(corpus: Corpus) -> dict[str, int]:
    """Return the sizes of a corpus's files, file -> bytes, including shards in other locations."""
    sizes, urls = list_files(corpus.name, _retry_policy(corpus)), corpus.mirror.addresses if corpus.mirror else {}
    folders = {url.rpartition("/")[0] for url in urls.values()}
    remote_sizes = {
        join_path(folder, name): size
        for folder in folders
        for name, size in list_files(folder, _retry_policy(corpus)).items()
    }
    return sizes | {name: remote_sizes[url] for name, url in urls.items() if url in remote_sizes}


def _shards_finding(corpus: Corpus, shards: Sequence[ShardInfo], hashed: Sequence[ShardInfo]) -> Finding:
    read = sum(info.size for info in hashed)
    details = {
        "corpus": corpus.name,
        "shards": len(shards),
        "bytes": sum(info.size for info in shards),
        "tokens": sum(info.tokens for info in shards),
        "hashed_shards": len(hashed),
        "hashed_bytes": read,
    }
    hashed_shards = "all" if len(hashed) == len(shards) else f"{len(hashed):,}"
    bytes_ = f"{hashed_shards} hashed ({read / 2**20:,.1f} MiB)" if hashed else "none hashed"
    shard = number_with_noun(len(shards), "shard", "shards")
    message = f"{corpus.name}: {shard} with {details['tokens']:,} tokens, all of the right size; {bytes_}."
    return Finding("data", "ok", message, details)


def _sample_shards(case: CheckInput, shards: Sequence[ShardInfo]) -> list[ShardInfo]:
    """Return the shards of a corpus whose content is checked, a new random sample each time."""
    if case.hashing == "all":
        return list(shards)
    sample: list[ShardInfo] = []
    bytes_left = SAMPLE_BYTES if case.hashing == "some" else 0
    for info in random.sample(shards, len(shards)) if bytes_left else ():
        if bytes_left <= 0:
            break
        sample.append(info)
        bytes_left -= info.size
    return sample


def _find_damage(case: CheckInput, corpus: Corpus, shards: Sequence[ShardInfo]) -> list[str]:
    """Return the problems found in the content of these shards of a corpus."""
    problems = []
    with ThreadPoolExecutor(THREADS) as executor:
        futures = {executor.submit(_hash_problem, corpus, info): info for info in shards}
        for done, future in enumerate(as_completed(futures), start=1):
            case.tell(f"{corpus.name}: {done:,} of {len(shards):,} shards read")
            if problem := future.result() or _index_problem(case, corpus, futures[future]):
                problems.append(problem)
    return sorted(problems)


def _hash_problem(corpus: Corpus, info: ShardInfo) -> str | None:
    for name, expected in info.hashes.items():
        file = corpus.url_of(name)
        if file_sha256(file, _retry_policy(corpus)) != expected:
            return damaged_message(file)
    return None


def _index_problem(case: CheckInput, corpus: Corpus, info: ShardInfo) -> str | None:
    """Return the problem of a shard's index, if the shard is undamaged. A remote shard is not downloaded for this."""
    if corpus.mirror:
        return None
    try:
        shard = corpus.open_shard(info, "none")
    except UserError as error:
        return str(error)
    max_documents = None if case.hashing == "all" else SAMPLE_DOCUMENTS
    software_problems = _find_index_error(shard, info, corpus.manifest.tokenizer["vocabulary"], max_documents)
    return (
        f"{join_path(corpus.name, info.name)}: {software_problems}; build the corpus again."
        if software_problems
        else None
    )


def _find_index_error(shard: Shard, info: ShardInfo, vocabulary: int, max_documents: int | None) -> str | None:
    """Return the first error in the index of a shard, or None; `max_documents` are looked up."""
    locations = shard.index[:, TOKENS_AT : TOKENS_AT + 2]
    if int(locations[:, 1].sum()) != info.tokens:
        return f"{info.index_name} has {int(locations[:, 1].sum()):,} tokens, but the manifest has {info.tokens:,}"
    for document, (at, count) in enumerate(locations[:max_documents].tolist()):
        if not shard.ids_in_index and not _has_array_at(shard, document, at, count):
            return f"{info.index_name} names a document of {count:,} tokens at byte {at:,}, which is not there"
        largest = int(shard.tokens(document).max())
        if largest >= vocabulary:
            return f"a document has token id {largest:,}, but the tokenizer has only {vocabulary:,} ids"
    return None


def _has_array_at(shard: Shard, document: int, at: int, count: int) -> bool:
    """Whether a shard's tar has an array of this many tokens at this offset, after the array's header."""
    size = count * shard.dtype.itemsize
    if not 0 < size <= shard.content.size - at:
        return False
    header = npy_bytes(shard.tokens(document))[:-size]
    return shard.content.read(max(0, at - len(header)), min(at, len(header))) == header


def _retry_policy(corpus: Corpus) -> RetryPolicy:
    return corpus.mirror.cache.retry if corpus.mirror else RetryPolicy()

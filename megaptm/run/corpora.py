"""Corpora of a run: open them, and compare them with the model and each other. Does not import torch, because the
launcher uses it, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from megaptm.checkpoint.committed import find_committed, read_newest_state
from megaptm.config import Config, resolve_spec
from megaptm.data import Corpus, Mix, open_mix
from megaptm.data.manifest import MANIFEST, NoCorpusError
from megaptm.data.mix import ReadCursors
from megaptm.data.opening import refuse_different_tokenizers, required_annotations
from megaptm.data.order import check_annotations
from megaptm.data.shared_checks import ShareOfChecks
from megaptm.data.statistics import count_tokens, read_texts
from megaptm.errors import UserError
from megaptm.mixture import total_weight
from megaptm.objectives.composed import objective_tasks
from megaptm.objectives.objective import refuse_missing_tokens
from megaptm.run.build_command import build_command, specials_option
from megaptm.spec import ModelSpec, TokenInput
from megaptm.storage import (
    RemoteFileCache,
    RetryPolicy,
    default_cache_folder,
    exists,
    expand_home,
    is_remote,
    join_path,
)
from megaptm.tokenizers import KINDS, SPECIALS, Tokenizer, load_tokenizer

FREQUENCY_SORTED = "words"
"""Kind of tokenizer whose ids are sorted by frequency."""


AllReduce = Callable[[np.ndarray], np.ndarray]
"""All-reduce function: array of this rank -> sum over all ranks."""


class RunCorpora:
    """Corpora of a run. Each is opened once, which reads and hashes its shard tables, for a URL over the network.

    The fingerprint of the first corpus's tokenizer must be the recorded one, and the tokenizer must fit the model.
    """

    def __init__(self, config: Config, share: ShareOfChecks | None = None) -> None:
        """`share`: part of the checks of shards that this process does; None: all."""
        self.config, self.share = config, share
        opened = {path: replace(open_corpus(path, config), share=share) for path in config.data.corpora}
        self._corpora = {path: opened[path] for path in config.data.mix}
        self._opened = opened
        first, corpus = next(iter(self._corpora.items()))
        self.tokenizer = load_corpus_tokenizer(corpus)
        check_vocabulary(config, self.tokenizer, first)
        for path, other in opened.items():
            if path not in self._corpora and other.manifest.tokenizer["fingerprint"] != self.tokenizer.fingerprint:
                raise UserError(
                    f"data.validation: {path} was made with another tokenizer than {first}: build it with "
                    f"tokenizer={join_path(first, 'tokenizer')}."
                )
        for task in objective_tasks(config.built_objective):
            read = [corpus for name, corpus in self._corpora.items() if name in (task.corpora or [name])]
            if read and not any(task.objective.for_corpus(corpus.manifest.fields) is task.objective for corpus in read):
                # Every corpus would be read with another objective.
                check_annotations(read[0], required_annotations(task.objective))
        _check_special_tokens(config, self.tokenizer)

    def word_counts(self, vocabulary: int, part: int, parts: int, all_reduce: AllReduce) -> np.ndarray:
        """Count the tokens of a run's training text: return int64 [vocabulary], the count of each id. Each rank counts
        a part.

        Counts of several corpora are weighted by their shares. They are rounded only after summing over ranks, so that
        they do not depend on the number of ranks.
        """
        verify = self.config.data.verify
        counts = all_reduce(
            np.stack(
                [
                    count_tokens(corpus, "train", vocabulary, part=part, parts=parts, verify=verify)
                    for corpus in self._corpora.values()
                ]
            )
        )
        shares = np.array([*self._relative_epochs().values()])
        weighted: np.ndarray = np.rint(counts * shares[:, None]).astype(np.int64).sum(axis=0)
        return weighted

    def texts(self, split: str, part: int, parts: int) -> Iterator[tuple[float, Iterator[list[np.ndarray]]]]:
        """Yield for each corpus of a run its share, and a part of the documents of a split."""
        for path, share in self._relative_epochs().items():
            corpus, verify = self._corpora[path], self.config.data.verify
            yield share, read_texts(corpus, split, part=part, parts=parts, verify=verify)

    def tokens(self, split: str) -> float:
        """Return the number of tokens of all corpora of a run, weighted by their shares."""
        return sum(share * self._corpora[path].split(split).tokens for path, share in self._relative_epochs().items())

    def _relative_epochs(self) -> dict[str, float]:
        """Return the relative number of epochs of each corpus of a run; 1 for the corpus that is repeated most."""
        mix = self.config.data.mix
        for path, value in mix.items():
            if isinstance(value, list) or (isinstance(value, dict) and {*value} - {"weight"}):
                raise UserError(
                    f"data.mix: {self.config.model.family} is trained on counts of complete corpora: remove quality, "
                    f"domains and max_epochs of {path}."
                )
        epochs = {
            path: total_weight(mix[path]) / corpus.split("train").tokens for path, corpus in self._corpora.items()
        }
        return {path: number / max(epochs.values()) for path, number in epochs.items()}

    def check(self) -> None:
        """Raise `UserError` if corpora of a run are incompatible, lack a split, or have shards of the wrong size. `mix`
        checks the same."""
        self.config.built_objective.check(self.tokenizer.special, self.config.data.sequence)
        refuse_different_tokenizers(self._corpora, self.tokenizer.special)
        for corpus in self._corpora.values():
            for split in ("train", "validation"):
                corpus.check(split, "none" if self.config.data.verify == "none" else "size")

    @property
    def ids(self) -> dict[str, str]:
        """Return the ids of a run's corpora: name -> id of the manifest."""
        return {path: corpus.manifest.id for path, corpus in self._corpora.items()}

    def mix(self, split: str) -> Mix:
        """Return the mix of a run's corpora for `train` or `validation`."""
        data = self.config.data
        cursors, ramp = data.cursors if split == "train" else None, data.mix_ramp
        return self._open(
            data.mix,
            self._corpora,
            split=split,
            objective=self.config.objective,
            schedule=self.config.batch_schedule if split == "train" else None,
            start=None if cursors is None else ReadCursors(cursors.step, cursors.sample, cursors.read),
            mix_ramp=None if ramp is None or ramp.steps is None else (ramp.initial, ramp.steps),
        )

    def validation_mixes(self) -> dict[str, Mix]:
        """Return the samples of the named validation sets. Raise `UserError` for a set without a full batch."""
        mixes, objective = {}, self.config.built_objective.for_validation()
        for name, own in self.config.data.validation_sets.items():
            try:
                opened = {path: self._opened[path] for path in own.mix}
                mixes[name] = self._open(own.mix, opened, split=own.split, objective=objective)
                mixes[name].fresh_batches(self.config.train.batch)
            except UserError as error:
                raise UserError(f"validation set {name}: {error}") from None
        return mixes

    def _open(self, mix: Mapping[str, Any], corpora: Mapping[str, Corpus], **options: Any) -> Mix:
        data = self.config.data
        return open_mix(
            mix,
            opened=corpora,
            sequence=data.sequence,
            seed=self.config.train.seed,
            document_mask=data.document_mask,
            special=self.tokenizer.special,
            verify=data.verify,
            size_exponent=data.size_exponent,
            dupe_factor=data.dupe_factor,
            size_limits=data.size_limits,
            last_step=self.config.train.steps - 1,
            lanes=self.config.train.batch,
            **options,
        )


def open_corpus(path: str, config: Config) -> Corpus:
    """Open a corpus of a run's mix. If there is none, the error gives the command that builds it or, if the run has
    already read it, the key for its new path."""
    try:
        return Corpus.open(path, corpus_cache(config))
    except NoCorpusError as error:
        trained = read_newest_state(Path(config.run)).get("corpora")
        if path in config.data.mix and isinstance(trained, dict) and path in trained:
            value = config.data.mix[path]
            shown = f"{value:g}" if isinstance(value, float) else json.dumps(value)
            raise UserError(
                f"data.mix: {path} is no longer a corpus ({MANIFEST} is missing), and the run in {config.run} was "
                f"trained on it: restore it or, if it was moved, set its new path, data.mix='{{NEW: "
                f"{shown}}}'."
            ) from None
        raise NoCorpusError(error.message, build_command(path, config)) from None


def _check_special_tokens(config: Config, tokenizer: Tokenizer) -> None:
    """Raise `UserError` if an objective needs a special token that the tokenizer lacks. If the family's kind of
    tokenizer has the token, the error recommends that kind."""
    family = resolve_spec(config).family
    known = SPECIALS[family.tokenizer.specials or KINDS[family.tokenizer.kind].specials].roles
    for task in objective_tasks(config.built_objective):
        missing = task.objective.missing_tokens(tokenizer.special)
        if missing and {*missing} <= {*known}:
            options = " ".join([f"tokenizer.kind={family.tokenizer.kind}", *specials_option(family)])
            refuse_missing_tokens(task.objective, tokenizer.special, remedy=f"{options}, as {family.name} has it")


def corpus_cache(config: Config) -> RemoteFileCache:
    """Return the local cache of a run's remote shards, with its size limit and the time for which requests are
    retried."""
    data = config.data
    folder = expand_home(data.cache_dir) if data.cache_dir else default_cache_folder()
    return RemoteFileCache(folder, data.max_cache_bytes, RetryPolicy(seconds=data.timeout_seconds))


def corpus_vocabulary(config: Config) -> int | None:
    """Return the vocabulary size of the mix's first corpus; None if the corpus does not exist yet."""
    path, cache = next(iter(config.data.mix)), corpus_cache(config)
    if not exists(join_path(path, MANIFEST), cache.retry):
        return None
    return Corpus.open(path, cache).manifest.tokenizer["vocabulary"]


def check_vocabulary(config: Config, tokenizer: Tokenizer, path: str) -> None:
    """Raise `UserError` if the vocabulary of the corpus at `path` is larger than the model's."""
    spec = resolve_spec(config)
    record = spec.family.find_input(TokenInput) if isinstance(spec, ModelSpec) else None
    key = "" if record is None else record.key_needing_sorted_ids(spec.size)
    if key and tokenizer.kind != FREQUENCY_SORTED:
        raise UserError(
            f"model.{key} needs token ids that are sorted by frequency (tokenizer.kind={FREQUENCY_SORTED}), and the "
            f"tokenizer of {path} has kind {tokenizer.kind}: build the corpus with tokenizer.kind={FREQUENCY_SORTED}, "
            f"or set model.{key}=[]."
        )
    vocabulary = spec.vocabulary
    if tokenizer.vocabulary > vocabulary:
        own = Path(config.run, "tokenizer")
        remedy = (
            f"build the corpus with tokenizer={own}"  # the model of a started or imported run cannot change
            if own.exists() and find_committed(Path(config.run))
            else f"set model.vocabulary={tokenizer.vocabulary}, or build the corpus with a smaller tokenizer"
        )
        raise UserError(
            f"model.vocabulary ({vocabulary:,}) is less than the {tokenizer.vocabulary:,} ids of the tokenizer of "
            f"{path}: {remedy}."
        )


def refuse_larger_corpora(config: Config, vocabulary: int) -> None:
    """Raise `UserError` if a local corpus has more ids than an imported model. A corpus that does not exist yet may be
    built later."""
    for path in config.data.mix:
        if is_remote(path) or not Path(path, MANIFEST).is_file():
            continue
        tokenizer = load_corpus_tokenizer(Corpus.open(path))
        if tokenizer.vocabulary > vocabulary:
            raise UserError(
                f"data.mix: the corpus {path} has {tokenizer.vocabulary:,} ids, more than the {vocabulary:,} of the "
                "model: import without data.mix, then build a corpus with tokenizer=RUN/tokenizer."
            )


def load_corpus_tokenizer(corpus: Corpus) -> Tokenizer:
    """Return the tokenizer in a corpus, after checking that it has the recorded fingerprint."""
    path, fingerprint = corpus.folder / "tokenizer", corpus.manifest.tokenizer["fingerprint"]
    if corpus.mirror and _tokenizer_fingerprint(path) != fingerprint:
        corpus.mirror.fetch_tokenizer(again=True)
    tokenizer = load_tokenizer(path)
    if tokenizer.fingerprint != fingerprint:
        raise UserError(
            f"{path} is not the tokenizer that its corpus was built with: restore that one, or build the corpus again."
        )
    return tokenizer


def _tokenizer_fingerprint(path: Path) -> str | None:
    try:
        return load_tokenizer(path).fingerprint
    except UserError:
        return None

"""The corpora of the mix: shards and tokenizers beside their manifests, the text beside the steps."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from megaptm.check.finding import Case, Finding
from megaptm.check.shards import look_at_shards
from megaptm.config import Config
from megaptm.data import Corpus
from megaptm.data.mix import Mix
from megaptm.errors import UserError
from megaptm.train.corpora import cache_of, check_epochs, check_vocabulary, corpus_tokenizer, open_corpora, tokenizer_of

PATIENCE_SECONDS = 20.0
"""For a server of corpora: a run waits longer (data.patience), who sits before a screen does not."""
MANY_EPOCHS = 40
"""BERT read its text about so often (arXiv:1810.04805, section A.2); more is unusual, and worth a word."""


def corpora(case: Case) -> Iterator[Finding]:
    """Each corpus by itself, then the mix of them, if they are all good and the config is."""
    with away_from_the_cache(case.config) as config:
        case = replace(case, config=config)
        good = True
        for place in config.data.mix:
            for finding in _corpus(case, place):
                good = good and finding.state != "fault"
                yield finding
        if good and not case.mistakes:
            yield from _mix(config)


@contextmanager
def away_from_the_cache(config: Config) -> Iterator[Config]:
    """The config with a cache of its own that is not left behind, and with little patience.

    Shards are checked here, and not once more when they are opened.
    """
    with tempfile.TemporaryDirectory(prefix="megaptm-check-") as cache:
        seconds = min(PATIENCE_SECONDS, config.data.patience)
        data = config.data.model_copy(update={"cache": cache, "patience": seconds, "verify": "none"})
        yield config.model_copy(update={"data": data})


def _corpus(case: Case, place: str) -> Iterator[Finding]:
    case.tell(f"opening {place}")
    try:
        corpus = Corpus.open(place, cache_of(case.config))
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
    """Whether corpora, tokenizer and objective go together, and there is enough text."""
    tokenizer, train = corpus_tokenizer(config), config.train
    text = open_corpora(config, tokenizer, "train")
    check_epochs(config, text)
    held_out = open_corpora(config, tokenizer, "validation").fresh_batches(train.batch)
    samples = config.batches.first(train.steps)
    yield Finding(
        "data",
        "good",
        f"{samples:,} rows of {config.data.sequence:,} tokens are read in {train.steps:,} steps; {held_out:,} batches "
        "are held out.",
        {"rows": samples, "held_out_batches": held_out},
    )
    yield from _epochs(config, text, samples)


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

"""Train a quality classifier on good and on ordinary documents, with scikit-learn."""

from __future__ import annotations

import hashlib
import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from data_pipeline.clean import CLEAN, run_steps
from data_pipeline.clean.quality_classifier import UNIT, QualityClassifier, hashed_ngrams
from data_pipeline.clean.step import import_library
from data_pipeline.document import DropCounts
from data_pipeline.recipe import read_recipe
from data_pipeline.sources import Span, find_files, read_span
from megaptm.errors import UserError

HELD_OUT = 10
"""One in this many examples is held out to measure the classifier."""
MIN_EXAMPLES = 20
EXAMPLE_CHARACTERS = 50_000
"""Maximum characters of an example that are read, so that the n-grams of many books fit into memory."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of a quality classifier."""

    ngrams: int = 2
    """Maximum number of words of an n-gram."""
    bits: int = 20
    """Bits of the hash of an n-gram: 20 make a file of 4 MiB."""
    documents: int = 20_000
    """Maximum number of examples of each kind, sampled by a hash of their text."""
    regularization: float = 0.1
    """Strength of the L2 penalty on weights (1 / C of scikit-learn)."""

    def __post_init__(self) -> None:
        for name, low, high in (("ngrams", 1, 5), ("bits", 10, 26), ("documents", MIN_EXAMPLES, 1 << 24)):
            if not low <= (value := getattr(self, name)) <= high:
                raise UserError(f"--{name} must be from {low:,} to {high:,}, not {value:,}.")
        if not self.regularization > 0:
            raise UserError(f"--regularization must be above 0, not {self.regularization:g}.")


@dataclass(frozen=True)
class Examples:
    """Examples of one kind, in the order of the hashes of their texts."""

    held_out: np.ndarray
    """Whether each example is held out, bool [examples]."""
    features: list[np.ndarray]


def train_classifier(
    good_sources: Sequence[str],
    ordinary_sources: Sequence[str],
    options: TrainingOptions,
    dropped: DropCounts | None = None,
) -> QualityClassifier:
    """Train a classifier that separates the documents of good sources from those of ordinary sources.

    The result depends only on the texts and the options, not on the order of files. Text that cannot be read is counted
    in `dropped`.
    """
    dropped = DropCounts() if dropped is None else dropped
    sparse = import_library("scipy.sparse", "train-quality")
    linear_model = import_library("sklearn.linear_model", "train-quality")
    metrics = import_library("sklearn.metrics", "train-quality")
    kinds = [_read_examples(sources, options, dropped) for sources in (good_sources, ordinary_sources)]
    features = [*kinds[0].features, *kinds[1].features]
    labels = np.repeat([1, 0], [len(kind.features) for kind in kinds])
    held_out = np.concatenate([kind.held_out for kind in kinds])
    sizes = np.array([len(row) for row in features])
    values = np.repeat(1 / np.sqrt(sizes), sizes).astype(np.float64)
    rows = sparse.csr_matrix(
        (values, np.concatenate(features), np.concatenate([[0], np.cumsum(sizes)])),
        shape=(len(sizes), 1 << options.bits),
    )
    model = linear_model.LogisticRegression(
        C=1 / options.regularization, solver="liblinear", class_weight="balanced", random_state=0, max_iter=200
    )
    model.fit(rows[~held_out], labels[~held_out])
    weights = (np.rint(model.coef_[0] / UNIT) * UNIT).astype(np.float32)
    classifier = QualityClassifier(weights, float(model.intercept_[0]), options.ngrams, {})
    scores = model.predict_proba(rows[held_out])[:, 1]
    truth = labels[held_out]
    classifier.info.update(
        good=len(kinds[0].features),
        ordinary=len(kinds[1].features),
        held_out=int(held_out.sum()),
        area_under_roc=round(float(metrics.roc_auc_score(truth, scores)), 4),
        quantiles={
            name: [round(float(value), 4) for value in np.quantile(scores[truth == label], QUANTILES)]
            for name, label in (("good", 1), ("ordinary", 0))
        },
    )
    return classifier


def _read_examples(sources: Sequence[str], options: TrainingOptions, dropped: DropCounts) -> Examples:
    """Read the documents of sources, with the default cleaning steps. Equal texts count once."""
    files = find_files(read_recipe(sources).sources, dropped)
    spans = (read_span(Span(file), dropped) for file in files)
    heap: list[tuple[int, np.ndarray]] = []
    known: set[int] = set()
    for document in run_steps(CLEAN, itertools.chain.from_iterable(spans), dropped):
        digest = int.from_bytes(hashlib.blake2b(document.text.encode("utf-8", "replace"), digest_size=8).digest())
        is_full = len(heap) == options.documents
        if digest in known or (is_full and -digest <= heap[0][0]):
            continue
        text = document.text[:EXAMPLE_CHARACTERS]
        features = hashed_ngrams(text, options.ngrams, 1 << options.bits).astype(np.int32)
        if not len(features):
            continue
        known.add(digest)
        if is_full:
            known.discard(-heapq.heapreplace(heap, (-digest, features))[0])
        else:
            heapq.heappush(heap, (-digest, features))
    if len(heap) < MIN_EXAMPLES:
        raise UserError(
            f"{', '.join(sources)}: {len(heap)} different documents are too few examples: use sources with at least "
            f"{MIN_EXAMPLES}, or divide their files (`documents: blank-line` in a recipe)."
        )
    heap.sort(key=lambda example: -example[0])
    held_out = np.arange(len(heap)) % HELD_OUT == HELD_OUT - 1
    return Examples(held_out, [features for _, features in heap])


def quality_table(classifier: QualityClassifier) -> Table:
    """Return a table of the scores of held-out examples, from which thresholds and buckets are chosen."""
    info = classifier.info
    table = Table(title=f"scores of {info['held_out']:,} held-out examples", title_justify="left")
    for column in ("examples", "documents", *(f"{quantile:.0%}" for quantile in QUANTILES)):
        table.add_column(column, justify="left" if column == "examples" else "right")
    for kind, values in info["quantiles"].items():
        table.add_row(kind, f"{info[kind]:,}", *(f"{value:.3f}" for value in values))
    return table

"""Command that builds a missing corpus for a run."""

from __future__ import annotations

import shlex
from itertools import chain
from pathlib import Path

from megaptm.config import Config, resolve, resolve_model
from megaptm.data.opening import annotations_of
from megaptm.families.words import WordFamily
from megaptm.objectives.composed import Task, tasks_of
from megaptm.spec import Family
from megaptm.storage import join_path

SOURCES = {
    "turns": ("TALKS.jsonl", "messages: messages"),
    "labels": ("PAIRS.jsonl", "parts: [FIRST, SECOND], keep: [label]"),
    "parts": ("PAIRS.jsonl", "parts: [FIRST, SECOND]"),
}
"""Annotation -> example source that provides it and is not plain text: path, and settings."""
VALUES = {"labels": "[LABEL, LABEL]", "phrases": "PHRASES.txt", "tags": "TAGS.tsv"}
"""Annotation that is not a switch -> placeholder for its value."""
PUBLISHED_DETECTOR = (2048, 1601)
"""Detector (features, classes) whose files `megaptm corpus images` accepts by default."""


def specials_option(family: Family | WordFamily) -> list[str]:
    """Return the option for the family's special tokens, if they are not the default of its kind of tokenizer."""
    return [f"tokenizer.specials={family.specials}"] if family.specials else []


def build_command(place: str, config: Config) -> str:
    """Return the command that builds a corpus of the mix.

    The tokenizer is that of the mix's first corpus, else that of the initial weights, else of the family's kind.
    Annotations are those that the tasks need. If the folder contains text, it is the source.
    """
    folder = Path(place)
    text, out = (place, f"corpora/{folder.name}") if folder.is_dir() and any(folder.iterdir()) else (None, place)
    return shlex.join(["megaptm", *build_words(place, config, text=text, out=out)])


def build_words(place: str, config: Config, *, text: str | None, out: str, tokenizer: str | None = None) -> list[str]:
    """Return the arguments of `megaptm` that build such a corpus from `text` in `out`. `tokenizer` is the folder of an
    existing one."""
    family = resolve(config).family
    if isinstance(family, Family) and family.reads_images and not family.has_tokens:
        return ["corpus", "images", text or "FOLDER_OF_LABELS", f"out={out}"]
    needed = _needed(place, config)
    kind = next((name for name in SOURCES if name in needed), None)
    source = text or "TEXT"
    if kind is not None:
        example, settings = SOURCES[kind]
        source = f"sources=[{{path: {text or example}, {settings}}}]"
    first = next(iter(config.data.mix))
    if tokenizer is None and place != first and place in config.data.mix:
        tokenizer = join_path(first, "tokenizer")
    tokenizer = tokenizer or _tokenizer_of_weights(config)
    if isinstance(family, Family) and family.reads_images:
        told = _kind_of_tokenizer(config) if tokenizer is None else [f"tokenizer={tokenizer}"]
        # These are the defaults for such a corpus.
        told = [word for word in told if not word.startswith(("tokenizer.kind=", "tokenizer.specials="))]
        return ["corpus", "images", text or "FOLDER_OF_PAIRS", f"out={out}", "texts=true", *told]
    if isinstance(family, Family) and family.reads_regions and _with_regions(place, config):
        told = _kind_of_tokenizer(config) if tokenizer is None else [f"tokenizer={tokenizer}"]
        told = [word for word in told if word != "tokenizer.kind=wordpiece"]  # the default for such a corpus
        detector = resolve_model(config).size.detector
        told += [] if detector in (None, PUBLISHED_DETECTOR) else [f"detector={[*detector]}"]
        return ["corpus", "images", text or "FOLDER_OF_PAIRS", f"out={out}", "texts=true", "regions=true", *told]
    return [
        *("corpus", "build", source, f"out={out}"),
        *(_kind_of_tokenizer(config) if tokenizer is None else [f"tokenizer={tokenizer}"]),
        *(f"annotate.{name}={VALUES.get(name, 'true')}" for name in needed if name != "parts"),
    ]


def _tokenizer_of_weights(config: Config) -> str | None:
    """Return the tokenizer folder of the run or of `train.init_from`, because weights cannot be used with another
    tokenizer."""
    runs = (config.run, *([config.train.init_from] if config.train.init_from else []))
    return next((str(path) for run in runs if (path := Path(run) / "tokenizer").is_dir()), None)


def _tasks(place: str, config: Config) -> list[Task]:
    """Return the tasks that read a corpus."""
    return [task for task in tasks_of(config.built_objective) if place in (task.corpora or [place])]


def _with_regions(place: str, config: Config) -> bool:
    """Whether a task that reads the corpus needs images. UNIMO reads texts without images, too."""
    return any(task.objective.blobs for task in _tasks(place, config))


def _needed(place: str, config: Config) -> list[str]:
    """Return the annotations that a corpus needs for its tasks.

    With several corpora, annotations are omitted for tasks that fall back to another objective without them.
    """
    tasks = _tasks(place, config)
    alone = len(config.data.mix) == 1
    asked = (task.objective if alone else task.objective.for_corpus(()) for task in tasks)
    return [*dict.fromkeys(chain(*map(annotations_of, asked)))]


def _kind_of_tokenizer(config: Config) -> list[str]:
    family, model = resolve(config).family, config.model
    # Without an explicit value, a custom model has the published vocabulary size, which is too large for a small
    # corpus.
    said = model.size != "custom" or model.vocabulary != family.vocabulary
    return [
        f"tokenizer.kind={family.tokenizer}",
        *([f"tokenizer.vocabulary={model.vocabulary}"] if said else []),
        *specials_option(family),
    ]

"""The command that builds a corpus which a run asks for and which is not there."""

from __future__ import annotations

import shlex
from itertools import chain
from pathlib import Path

from megaptm.config import Config, resolve, resolve_model
from megaptm.data.opening import annotations_of
from megaptm.families.words import WordFamily
from megaptm.objectives.composed import Task, tasks_of
from megaptm.spec import Family
from megaptm.storage import join

SOURCES = {
    "turns": ("TALKS.jsonl", "messages: messages"),
    "labels": ("PAIRS.jsonl", "parts: [FIRST, SECOND], keep: [label]"),
    "parts": ("PAIRS.jsonl", "parts: [FIRST, SECOND]"),
}
"""Annotation -> a source that has it, of no plain text: its path, and its settings."""
VALUES = {"labels": "[LABEL, LABEL]", "phrases": "PHRASES.txt", "tags": "TAGS.tsv"}
"""Annotation that is no switch -> what stands for its value."""
PUBLISHED_DETECTOR = (2048, 1601)
"""Whose files `megaptm corpus images` takes unless told of another."""


def specials_option(family: Family | WordFamily) -> list[str]:
    """The special tokens of the family, where its kind of tokenizer has others unless told."""
    return [f"tokenizer.specials={family.specials}"] if family.specials else []


def build_command(place: str, config: Config) -> str:
    """What builds a corpus of the mix: with the family's kind of tokenizer, that of the mix's first corpus, or that of
    the weights that the run begins with; with all that the tasks ask about which read it; of what is in the folder,
    where that is text and no corpus."""
    folder = Path(place)
    text, out = (place, f"corpora/{folder.name}") if folder.is_dir() and any(folder.iterdir()) else (None, place)
    return shlex.join(["megaptm", *build_words(place, config, text=text, out=out)])


def build_words(place: str, config: Config, *, text: str | None, out: str, tokenizer: str | None = None) -> list[str]:
    """The words behind `megaptm` that build such a corpus of `text` to `out`; `tokenizer` is the folder of one that is
    there."""
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
        tokenizer = join(first, "tokenizer")
    tokenizer = tokenizer or _tokenizer_of_weights(config)
    if isinstance(family, Family) and family.reads_images:
        told = _kind_of_tokenizer(config) if tokenizer is None else [f"tokenizer={tokenizer}"]
        # The family's kind and special tokens are those that such a corpus is built with anyway.
        told = [word for word in told if not word.startswith(("tokenizer.kind=", "tokenizer.specials="))]
        return ["corpus", "images", text or "FOLDER_OF_PAIRS", f"out={out}", "texts=true", *told]
    if isinstance(family, Family) and family.reads_regions and _with_regions(place, config):
        told = _kind_of_tokenizer(config) if tokenizer is None else [f"tokenizer={tokenizer}"]
        told = [word for word in told if word != "tokenizer.kind=wordpiece"]  # such a corpus has it anyway
        detector = resolve_model(config).size.detector
        told += [] if detector in (None, PUBLISHED_DETECTOR) else [f"detector={[*detector]}"]
        return ["corpus", "images", text or "FOLDER_OF_PAIRS", f"out={out}", "texts=true", "regions=true", *told]
    return [
        *("corpus", "build", source, f"out={out}"),
        *(_kind_of_tokenizer(config) if tokenizer is None else [f"tokenizer={tokenizer}"]),
        *(f"annotate.{name}={VALUES.get(name, 'true')}" for name in needed if name != "parts"),
    ]


def _tokenizer_of_weights(config: Config) -> str | None:
    """Of the run, where one was imported or begun, or of `train.init_from`: other tokens would be refused."""
    runs = (config.run, *([config.train.init_from] if config.train.init_from else []))
    return next((str(path) for run in runs if (path := Path(run) / "tokenizer").is_dir()), None)


def _tasks(place: str, config: Config) -> list[Task]:
    """Those that read a corpus."""
    return [task for task in tasks_of(config.built_objective) if place in (task.corpora or [place])]


def _with_regions(place: str, config: Config) -> bool:
    """Whether a task that reads it asks about images: UNIMO reads texts alone, too."""
    return any(task.objective.blobs for task in _tasks(place, config))


def _needed(place: str, config: Config) -> list[str]:
    """Annotations that the tasks ask about which read a corpus. Where there are more, one that another task can be
    asked of without them may be such."""
    tasks = _tasks(place, config)
    alone = len(config.data.mix) == 1
    asked = (task.objective if alone else task.objective.of_corpus(()) for task in tasks)
    return [*dict.fromkeys(chain(*map(annotations_of, asked)))]


def _kind_of_tokenizer(config: Config) -> list[str]:
    family, model = resolve(config).family, config.model
    # What a config of a smaller model does not say is filled with the published number: its text may not have so many.
    said = model.size != "custom" or model.vocabulary != family.vocabulary
    return [
        f"tokenizer.kind={family.tokenizer}",
        *([f"tokenizer.vocabulary={model.vocabulary}"] if said else []),
        *specials_option(family),
    ]

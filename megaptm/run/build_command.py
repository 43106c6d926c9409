"""Command that builds a run's missing corpus, for the error message."""

from __future__ import annotations

import shlex
from itertools import chain
from pathlib import Path

from megaptm.config import Config, resolve_spec
from megaptm.data.opening import required_annotations
from megaptm.families import contributions
from megaptm.objectives.composed import Task, objective_tasks
from megaptm.spec import Family, LayerlessFamily
from megaptm.storage import join_path

EXAMPLE_SOURCES = {
    "turns": ("TALKS.jsonl", "messages: messages"),
    "labels": ("PAIRS.jsonl", "parts: [FIRST, SECOND], keep: [label]"),
    "parts": ("PAIRS.jsonl", "parts: [FIRST, SECOND]"),
}
"""Example source that provides an annotation of a corpus and is not plain text, by annotation: path, and settings."""
PLACEHOLDERS = {"labels": "[LABEL, LABEL]", "phrases": "PHRASES.txt", "tags": "TAGS.tsv"}
"""Placeholder for the value of an annotation of a corpus on the command line, unless the annotation is a switch."""


def specials_option(family: Family | LayerlessFamily) -> list[str]:
    """Return the option for the family's special tokens, if they are not the default of its kind of tokenizer."""
    return [f"tokenizer.specials={family.tokenizer.specials}"] if family.tokenizer.specials else []


def build_command(path: str, config: Config) -> str:
    """Return the command that builds a corpus of the run's mix.

    The tokenizer is that of the mix's first corpus, else that of the initial weights, else of the family's kind.
    Annotations are those that the tasks need. If the folder contains text, it is the source.
    """
    folder = Path(path)
    text, out = (path, f"corpora/{folder.name}") if folder.is_dir() and any(folder.iterdir()) else (None, path)
    return shlex.join(["megaptm", *build_arguments(path, config, text=text, out=out)])


def build_arguments(
    path: str, config: Config, *, text: str | None, out: str, tokenizer: str | None = None
) -> list[str]:
    """Return the arguments of `megaptm corpus build` that build a missing corpus from `text` in `out`. `tokenizer` is
    the folder of an existing one."""
    needed = _needed_annotations(path, config)
    kind = next((name for name in EXAMPLE_SOURCES if name in needed), None)
    source = text or "TEXT"
    if kind is not None:
        example, settings = EXAMPLE_SOURCES[kind]
        source = f"sources=[{{path: {text or example}, {settings}}}]"
    first = next(iter(config.data.mix))
    if tokenizer is None and path != first and path in config.data.corpora:
        tokenizer = join_path(first, "tokenizer")
    tokenizer = tokenizer or _tokenizer_of_weights(config)
    tokenizer_options = _tokenizer_options(config) if tokenizer is None else [f"tokenizer={tokenizer}"]
    for own_arguments in contributions("commands", "BUILD_COMMAND"):
        if arguments := own_arguments(config, _tasks_reading(path, config), tokenizer_options, text):
            command, own_source, *settings = arguments
            return ["corpus", command, own_source, f"out={out}", *settings]
    return [
        *("corpus", "build", source, f"out={out}"),
        *tokenizer_options,
        *(f"annotate.{name}={PLACEHOLDERS.get(name, 'true')}" for name in needed if name != "parts"),
    ]


def _tokenizer_of_weights(config: Config) -> str | None:
    """Return the tokenizer folder of the run or of `train.init_from`, because weights cannot be used with another
    tokenizer."""
    runs = (config.run, *([config.train.init_from] if config.train.init_from else []))
    return next((str(path) for run in runs if (path := Path(run) / "tokenizer").is_dir()), None)


def _tasks_reading(path: str, config: Config) -> list[Task]:
    """Return the tasks of a run that read a corpus."""
    return [task for task in objective_tasks(config.built_objective) if path in (task.corpora or [path])]


def _needed_annotations(path: str, config: Config) -> list[str]:
    """Return the annotations that a corpus needs for its tasks.

    With several corpora, annotations are omitted for tasks that fall back to another objective without them.
    """
    tasks = _tasks_reading(path, config)
    is_only_corpus = len(config.data.mix) == 1
    objectives = (task.objective if is_only_corpus else task.objective.for_corpus(()) for task in tasks)
    return [*dict.fromkeys(chain(*map(required_annotations, objectives)))]


def _tokenizer_options(config: Config) -> list[str]:
    family, model = resolve_spec(config).family, config.model
    # Without an explicit value, a custom model has the published vocabulary size, which is too large for a small
    # corpus.
    is_explicit = model.size != "custom" or model.vocabulary != family.tokenizer.vocabulary
    return [
        f"tokenizer.kind={family.tokenizer.kind}",
        *([f"tokenizer.vocabulary={model.vocabulary}"] if is_explicit else []),
        *specials_option(family),
    ]

"""A corpus in one YAML: sources, steps, tokenizer, splits, seed."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from data_pipeline.clean.steps import CLEAN, STEPS, Step
from data_pipeline.sources.readers import OnError
from megaptm.errors import UserError
from megaptm.tokenizers import KINDS


@dataclass(frozen=True, kw_only=True)
class TokenizerRecipe:
    """A tokenizer to train on the corpus, or the folder of one that exists."""

    kind: str = "byte-bpe"
    """`byte-bpe`, `wordpiece` or `unigram`."""
    vocabulary: int = 8192
    """Number of ids, special ones included."""
    lowercase: bool = True
    """WordPiece: fold case and accents, as BERT uncased does."""
    sentinels: int = 100
    """Unigram: T5's stand-ins for hidden spans, part of the vocabulary."""
    folder: str | None = None
    """An existing tokenizer (Hugging Face's format); the fields above are then not read."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"tokenizer.kind ({self.kind}) is not known: use one of {', '.join(KINDS)}.")
        _check(_is_int(self.vocabulary), "tokenizer.vocabulary", self.vocabulary, "a number of ids")
        _check(_is_int(self.sentinels) and self.sentinels >= 0, "tokenizer.sentinels", self.sentinels, "0 or more")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that the bytes of a corpus depend on, but for the text itself."""

    sources: tuple[str, ...]
    """Files, folders, globs, or `python-library`."""
    steps: tuple[Step, ...] = CLEAN
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    validation: float = 0.02
    """Share of the documents held out, by hash."""
    seed: int = 0
    """Another seed holds out other documents."""
    limit_bytes: int | None = None
    """Keep about this much text, a sample by hash; absent: all."""
    shard_bytes: int = 8 << 20
    """Text in a shard."""
    on_error: OnError = "skip"
    """A file that cannot be read is counted and left out (`skip`) or ends the build (`fail`)."""

    def __post_init__(self) -> None:
        named = bool(self.sources) and all(isinstance(source, str) for source in self.sources)
        _check(named, "sources", list(self.sources), "at least one file, folder or glob")
        _check(
            _is_number(self.validation) and 0 <= self.validation < 1,
            "validation",
            self.validation,
            "a share from 0 to below 1",
        )
        _check(_is_int(self.seed), "seed", self.seed, "a whole number")
        for name in ("limit_bytes", "shard_bytes"):
            value = getattr(self, name)
            good = (_is_int(value) and value > 0) or (name == "limit_bytes" and value is None)
            _check(good, name, value, "a number of bytes above 0")
        _check(self.on_error in ("skip", "fail"), "on_error", self.on_error, "`skip` or `fail`")

    def plain(self) -> dict[str, Any]:
        """As the manifest keeps it; a tokenizer that was given is known there by its fingerprint, not by its place."""
        content = {**asdict(self), "steps": [_plain_step(step) for step in self.steps]}
        if self.tokenizer.folder is not None:
            del content["tokenizer"]
        return content


def read_recipe(path: str) -> Recipe:
    """Read a recipe from YAML; `tokenizer` may be a folder's name in place of a table."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML ({' '.join(str(error).split())}): correct it.") from None
    content = _table(content, Recipe, path)
    if "sources" not in content:
        raise UserError(f"{path} names no `sources`: list files, folders or globs under it.")
    sources = content["sources"]
    content["sources"] = tuple(sources if isinstance(sources, list) else [sources])
    if "steps" in content:
        content["steps"] = tuple(_step(step, path) for step in _list(content["steps"], f"{path}: steps"))
    tokenizer = content.get("tokenizer", {})
    tokenizer = {"folder": tokenizer} if isinstance(tokenizer, str) else tokenizer
    content["tokenizer"] = TokenizerRecipe(**_table(tokenizer, TokenizerRecipe, f"{path}: tokenizer"))
    return Recipe(**content)


def _step(written: Any, path: str) -> Step:
    """`drop-short`, or `drop-short: {characters: 40}`."""
    name, options = next(iter(written.items())) if isinstance(written, dict) and len(written) == 1 else (written, {})
    if not isinstance(name, str) or name not in STEPS:
        raise UserError(f"{path}: step `{name}` is not known: use {', '.join(STEPS)}.")
    return STEPS[name](**_table(options or {}, STEPS[name], f"{path}: step {name}"))


def _plain_step(step: Step) -> dict[str, Any]:
    name = next(name for name, kind in STEPS.items() if isinstance(step, kind))
    return {name: asdict(step)}  # type: ignore[call-overload]  # every step is a dataclass


def _table(content: Any, kind: type, where: str) -> dict[str, Any]:
    """A mapping whose keys are all fields of `kind`."""
    if not isinstance(content, Mapping):
        raise UserError(f"{where} holds {content!r} where a table of settings is due.")
    known = [entry.name for entry in fields(kind)]
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"use {', '.join(known) or 'none'}."
            raise UserError(f"{where}: `{key}` is not a setting: {hint}")
    return dict(content)


def _list(content: Any, where: str) -> list[Any]:
    if not isinstance(content, list):
        raise UserError(f"{where} holds {content!r} where a list is due.")
    return content


def _check(good: bool, name: str, value: Any, due: str) -> None:
    if not good:
        raise UserError(f"{name} ({value}) must be {due}.")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, float)

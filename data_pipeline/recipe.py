"""Recipe of a corpus in one YAML file: sources, steps, deduplication, annotations, tokenizer, splits, seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from data_pipeline.annotate import Annotations
from data_pipeline.clean import CLEAN, STEPS, CleaningStep
from data_pipeline.deduplicate import Deduplicate
from data_pipeline.grouping import Grouping
from data_pipeline.settings import parse_settings
from data_pipeline.sources import OnError, Source
from data_pipeline.sources.overrides import check_overrides
from megaptm.config.shipped import find_config
from megaptm.config.yamls import read_override, read_yaml_file
from megaptm.errors import UserError, nearest_name_advice
from megaptm.plugins import is_plugin, load_plugin
from megaptm.tokenizers import check_tokenizer_options

MAX_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class TokenizerRecipe:
    """Tokenizer to train on the corpus, or the folder of an existing one."""

    kind: str = "byte-bpe"
    """Algorithm, one of `megaptm.tokenizers.KINDS`."""
    vocabulary: int = 8192
    """Size of the tokenizer's vocabulary, including special tokens."""
    specials: str | None = None
    """Set of special tokens, one of `megaptm.tokenizers.SPECIALS`, named after a model family. Default: from the
    kind (`megaptm.tokenizers.KINDS`)."""
    lowercase: bool | None = None
    """Whether the tokenizer folds case and accents. Default: true for WordPiece and char-bpe, as in BERT uncased and
    GPT."""
    sentinels: int | None = None
    """Number of sentinels (placeholders of hidden spans) in the vocabulary. Default: 100 with T5's special tokens, else
    0."""
    digits: bool | None = None
    """Whether each digit is a separate token, as in PaLM. Default: digits are parts of words."""
    folder: str | None = None
    """Folder of an existing tokenizer in Hugging Face format. The fields above are then ignored."""

    def __post_init__(self) -> None:
        check_tokenizer_options(self.kind, self.specials, self.lowercase, self.sentinels, self.digits)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines the content of a corpus, except the text itself."""

    sources: tuple[Source, ...]
    steps: tuple[CleaningStep, ...] = CLEAN
    """Cleaning steps, applied to each document in this order."""
    deduplicate: Deduplicate = field(default_factory=Deduplicate)
    """Kinds of duplicate documents to drop."""
    groups: Grouping | None = None
    """Groups of documents by domain and quality, from which mixes select. Default: one group."""
    annotate: Annotations | None = None
    """Annotations stored beside the tokens. Default: sentences, if the tokenizer can separate two texts."""
    tokenizer: TokenizerRecipe = field(default_factory=TokenizerRecipe)
    validation: float | None = None
    """Share of documents in the validation split, chosen by hash. Default: 0.02, and more of a small corpus, so that a
    run can be validated (`selection.MIN_VALIDATION_BYTES`)."""
    seed: int = 0
    """Seed of the validation split."""
    limit_bytes: int | None = None
    """Approximate maximum bytes of text to keep, sampled by hash. Default: all."""
    shard_bytes: int = 8 << 20
    """Bytes of text per shard."""
    max_seconds: int = MAX_SECONDS
    """Maximum processor seconds for reading a document, and for each step on it. A last resort, see `time_limit`."""
    on_error: OnError = "skip"
    """Action for text that cannot be read: count and drop it (`skip`), or end the build (`fail`)."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("sources must name at least one file, folder or glob.")
        if len({source.has_parts for source in self.sources}) > 1:
            raise UserError("either all or no sources must have parts: build two corpora.")
        if self.annotate is not None and self.annotate.parts and not self.has_parts:
            raise UserError(
                "annotate.parts needs sources with `parts` or `aligned`: set them, or remove annotate.parts."
            )
        if self.sources[0].has_parts and self._pairing_steps:
            [name] = step_for_manifest(self._pairing_steps[0])
            raise UserError(
                f"step {name} makes parts of plain text, but the sources have parts already: remove the step."
            )
        if self.validation is not None and not 0 <= self.validation < 1:
            raise UserError(f"validation must be a share from 0 to below 1, not {self.validation}.")
        for name in ("limit_bytes", "shard_bytes", "max_seconds"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise UserError(f"{name} must be 1 or more, not {value}.")

    @property
    def has_parts(self) -> bool:
        """Whether documents of the recipe consist of several parts."""
        return self.sources[0].has_parts or bool(self._pairing_steps)

    @property
    def _pairing_steps(self) -> list[CleaningStep]:
        """Return the cleaning steps of the recipe that make labeled pairs."""
        return [step for step in self.steps if callable(getattr(step, "labels", None))]

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels that the recipe's cleaning steps can give."""
        return tuple(dict.fromkeys(label for step in self._pairing_steps for label in step.labels()))  # type: ignore[attr-defined]

    def for_manifest(self) -> dict[str, Any]:
        """Return the recipe for the manifest. An existing tokenizer is omitted, because the manifest has its
        fingerprint."""
        sources = [_changed_settings(source) for source in self.sources]
        content = {**asdict(self), "sources": sources, "steps": [step_for_manifest(step) for step in self.steps]}
        if self.max_seconds == MAX_SECONDS:
            del content["max_seconds"]
        for name in ("cluster_sizes", "repeat"):
            if not content["deduplicate"][name]:
                del content["deduplicate"][name]
        if self.groups is None:
            del content["groups"]
        if self.tokenizer.folder is not None:
            del content["tokenizer"]
        return content


def read_recipe(source: Sequence[str], settings: Sequence[str] = ()) -> Recipe:
    """Read the recipe of a corpus from one YAML file, or make one from the sources named in `source`, with `key=value`
    settings."""
    overrides = [match for word in (*source, *settings) if (match := OVERRIDE.fullmatch(word))]
    source, settings = ([word for word in words if not OVERRIDE.fullmatch(word)] for words in (source, settings))
    if overrides and not source and not any(word.startswith("sources=") for word in settings):
        raise UserError(
            f"{overrides[0][0]} only changes a setting of files in the sources: name the sources before it, such as "
            f"{overrides[0]['files']}."
        )
    for word in source:
        _refuse_mistyped_setting(word)
    named = len(source) == 1 and source[0].endswith((".yaml", ".yml"))
    if source and not named and any(word.startswith("sources=") for word in settings):
        raise UserError(f"sources=... would replace {', '.join(source)}: give all sources in one of the two ways.")
    where = source[0] if named else "the corpus"
    content: dict[str, Any] = (
        read_yaml_file(find_config(Path(source[0]))).values if named else {"sources": list(source)}
    )
    for setting in settings:
        content = _merge_settings(content, read_override(setting).values)
    for name in content:
        if name in SOURCE_KEYS and name not in RECIPE_KEYS:
            raise UserError(
                f"{where}: {name} is a setting of sources: write 'sources=[{{path: FILES, {name}: ...}}]', or "
                f"'GLOB:{name}=...' on the command line for the files that match."
            )
    if overrides and "sources" in content:
        content["sources"] = _with_overrides(content["sources"], overrides)
    ready = {name: read(content[name], where) for name, read in LIST_READERS.items() if name in content}
    if isinstance(folder := content.get("tokenizer"), str):
        content["tokenizer"] = {"folder": folder}
    return parse_settings(Recipe, content, where, ready)


def _refuse_mistyped_setting(word: str) -> None:
    """Raise UserError if a source on the command line is a setting of files, such as `text: content`."""
    match = MISTYPED.fullmatch(word)
    if match is None or Path(word).exists():
        return
    files, key, sign, value = match.group("files", "key", "sign", "value")
    if key in SOURCE_KEYS:
        raise UserError(
            f"{word} is no source: write '{files or 'GLOB'}:{key}={value or 'VALUE'}' for the files that match, and "
            "name the sources before it."
        )
    if files and sign == "=":
        raise UserError(f"{word}: {key} is no setting of sources; {nearest_name_advice(key, sorted(SOURCE_KEYS))}")


def _merge_settings(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings of a recipe recursively: tables are updated, other values replaced."""
    tables = {
        name: _merge_settings(content[name], value)
        for name, value in change.items()
        if isinstance(value, Mapping) and isinstance(content.get(name), Mapping)
    }
    return {**content, **change, **tables}


def _with_overrides(written: Any, overrides: Sequence[re.Match[str]]) -> list[Any]:
    """Add the overrides of the command line to `Source.overrides` of each source."""
    change: dict[str, Any] = {}
    for override in overrides:
        change = _merge_settings(change, {override["files"]: read_override(override["setting"]).values})
    return [
        _merge_settings(table, {"overrides": _merge_settings(table.get("overrides") or {}, change)})
        if isinstance(table, dict)
        else table
        for table in _source_tables(written)
    ]


def _source_tables(written: Any) -> list[Any]:
    sources = written if isinstance(written, list) else [written]
    return [{"path": source} if isinstance(source, str) else source for source in sources]


def _read_sources(written: Any, where: str) -> tuple[Source, ...]:
    """Read one source or a list of them; each is a path, or a table that contains `path`."""
    sources = []
    for number, table in enumerate(_source_tables(written), 1):
        sources.append(parse_settings(Source, table, f"{where}: source {number}"))
        check_overrides(sources[-1], f"{where}: source {number}")
    return tuple(sources)


def _changed_settings(source: Source) -> Any:
    """Return the path of a source, or a table of the path and the settings that differ from the defaults."""
    plain = Source(source.path)
    changed = {field.name: getattr(source, field.name) for field in fields(source)}
    changed = {name: value for name, value in changed.items() if value != getattr(plain, name)}
    return {"path": source.path, **changed} if changed else source.path


def _parse_steps(written: Any, where: str) -> tuple[CleaningStep, ...]:
    if not isinstance(written, list):
        raise UserError(
            f"{where}: steps must be a list, not {written!r}; on the command line write it like "
            "'steps=[drop-empty, drop-short: {words: 3}]'."
        )
    return tuple(_parse_step(step, where) for step in written)


def _parse_step(written: Any, where: str) -> CleaningStep:
    """Read a cleaning step of a recipe: `drop-short`, or `drop-short: {characters: 40}`."""
    name, options = next(iter(written.items())) if isinstance(written, dict) and len(written) == 1 else (written, {})
    return parse_settings(_step_class(name, where), options or {}, f"{where}: step {name}")


def _step_class(name: Any, where: str) -> type:
    """Return the class of a built-in cleaning step, or of a user's step `package.module:NAME`."""
    if isinstance(name, str) and is_plugin(name):
        kind = load_plugin(name, f"{where}: step {name}", "step")
        if not (
            isinstance(kind, type) and is_dataclass(kind) and any("__call__" in vars(base) for base in kind.__mro__)
        ):
            raise UserError(
                f"{where}: step {name} is not a dataclass that is called with documents (CleaningStep): correct it."
            )
        if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
            raise UserError(f"{where}: step {name} has no method `{lacking[0]}`: write it.")
        return kind
    if not isinstance(name, str) or name not in STEPS:
        hint = nearest_name_advice(name, STEPS, "use {}, or package.module:NAME.")
        raise UserError(f"{where}: unknown step {name}; {hint}")
    return STEPS[name]


def step_for_manifest(step: CleaningStep) -> dict[str, Any]:
    """Return a cleaning step in the form of a recipe, with all options."""
    kind = type(step)
    name = next((name for name, known in STEPS.items() if kind is known), f"{kind.__module__}:{kind.__qualname__}")
    return {name: asdict(step)}  # type: ignore[call-overload]  # every step is a dataclass


RECIPE_KEYS, SOURCE_KEYS = ({field_.name for field_ in fields(kind)} for kind in (Recipe, Source))
MISTYPED = re.compile(r"(?:(?P<files>[^=]+?):)?(?P<key>[a-z_]+) ?(?P<sign>[:=]) ?(?P<value>[^/]*)")
OVERRIDE = re.compile(rf"(?P<files>[^=]+?):(?P<setting>(?:{'|'.join(sorted(SOURCE_KEYS))})=.*)", re.DOTALL)
"""`GLOB:KEY=VALUE`: a setting for some files of the sources."""
LIST_READERS: dict[str, Callable[[Any, str], Any]] = {"sources": _read_sources, "steps": _parse_steps}

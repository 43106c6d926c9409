"""Base classes of families whose models have no layers, such as word vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from megaptm.spec.family import TokenizerSpec


@dataclass(frozen=True, kw_only=True)
class LayerlessFamily(ABC):
    """Family of models without layers. Its folder brings the rules of its config and its training engine."""

    title: ClassVar[str]
    """Content of a model of the family, for titles: `word vectors`."""
    usage: ClassVar[str]
    """Commands for models of the family, for the error of a command that does not support them."""
    export_command: ClassVar[str]
    """Command of `megaptm export` for models of the family."""
    evaluate_options: ClassVar[tuple[str, ...]] = ()
    """Options of `megaptm evaluate` that the family uses, among the `OPTIONS` of families."""
    required_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the config's section `model` that the family's size `custom` needs."""

    name: str
    paper: str
    tokenizer: TokenizerSpec
    """Published tokenizer of the family. A config whose corpus has another tokenizer uses that vocabulary size."""
    objectives: tuple[str, ...]
    """Names of the family's objectives; the first is the default of a config."""
    sizes: Mapping[str, Any]
    """Record of each size, a dataclass, by the name of the size."""

    @property
    @abstractmethod
    def size_fields(self) -> tuple[str, ...]:
        """Return the fields of a size that the family without layers uses, which are keys of the config's section
        `model`."""

    @abstractmethod
    def make_spec(self, model: Any, objective: Any) -> LayerlessSpec:
        """Return the model spec that a config's section `model` and its objective describe."""

    @abstractmethod
    def published(self, size: str) -> LayerlessSpec:
        """Return the spec of a model without layers exactly as published."""

    @abstractmethod
    def config_errors(self, config: Any) -> Iterator[str]:
        """Yield an error for each broken rule of a config of the family."""

    @abstractmethod
    def model_errors(self, model: Any) -> Iterator[str]:
        """Yield an error for each broken rule of the section `model` of the family."""

    @abstractmethod
    def build_engine(self, config: Any, spec: Any, corpora: Any, *, timeout_minutes: float) -> Any:
        """Build a training engine without weights for a model of the family
        (`train.training_engine.TrainingEngine`)."""

    def build_source(self, config: Any, engine: Any, corpora: Any) -> Any:
        """Build the input of the family's training engine (`train.batch_source.StepSource`). None: batches of the
        corpora."""
        return None

    @abstractmethod
    def load(self, checkpoint: Any) -> Any:
        """Return a trained model of the family from a `run.checkpoint.RunCheckpoint`, with its uses as methods."""

    @abstractmethod
    def evaluate(self, run: Path, **options: Any) -> None:
        """Print the evaluation of a run of the family. `options`: `step`, `as_json` and the `evaluate_options`."""


@dataclass(frozen=True, kw_only=True)
class LayerlessSpec(ABC):
    """Spec of a model without layers: its family with a size and a vocabulary, everything needed to build, or count,
    the model."""

    family: LayerlessFamily
    size: Any
    vocabulary: int

    @property
    def name(self) -> str:
        return self.family.name

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Return the number of parameters of a model without layers."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Return the bytes of the parameters of a model without layers, and of their optimizer state."""

    @property
    @abstractmethod
    def is_replicated(self) -> bool:
        """Whether each data rank holds the full model. Otherwise ranks hold equal parts."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return the values of the spec that must be equal for a checkpoint to be continued, besides the family's
        name."""

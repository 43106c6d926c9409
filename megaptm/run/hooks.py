"""Hooks of a run: checks, paths, samples and state of extensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from megaptm.config import Config
from megaptm.config.sections.extensions import used_sections
from megaptm.data.mix import Mix, SampleSource
from megaptm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from megaptm.checkpoint.checkpoint import Checkpoint


class RunHook:
    """Base class of the hooks that an extension adds to a run (`section.ExtensionSection.run_hook`). Its methods get
    the config of the run and do nothing."""

    def with_absolute_paths(self, config: Config, previous: Callable[[], Config | None]) -> Config:
        """Run hook: return the config with the extension's paths absolute, and with the steps of other runs filled in.
        `previous`: config of the run's start."""
        return config

    def check(self, config: Config, tokenizer: Tokenizer) -> tuple[str, dict[str, Any]] | None:
        """Run hook: raise `UserError` if the config names something of the extension that a run cannot use. Else return
        a sentence with the result, and its facts."""
        return None

    def check_samples(self, config: Config, mixes: Mapping[str, Mix]) -> None:
        """Run hook: raise `UserError` if something of the extension is missing for samples that the run reads. `mixes`:
        split -> its samples."""

    def with_added_fields(self, config: Config, samples: SampleSource, split: str) -> SampleSource:
        """Run hook: return the samples of a split with the fields that the extension adds, such as cached logits."""
        return samples

    def state(self, config: Config) -> dict[str, Any]:
        """Run hook: return the extension's entries of the state in the manifests of checkpoints."""
        return {}

    def refuse_changes(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> None:
        """Run hook: raise `UserError` if the checkpoint was written with another `state` of the extension."""


def run_hooks(config: Config) -> list[RunHook]:
    """Return the run hooks of the extensions that a config uses."""
    return [hook for section in used_sections(config) if (hook := section.run_hook()) is not None]

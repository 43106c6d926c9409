"""What is said of an architecture of Hugging Face's: fields of its config and names of its tensors, by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from megaptm.families import find_family
from megaptm.hub.tensor_rules import TensorRule
from megaptm.spec import Family, ModelSpec

FFN_OF_WIDTH = 4
"""What the feed-forward's width is to the model's where a config of theirs has no number for it."""


OF_EARLIER_RELEASES = {"position_embedding_type": "absolute", "pruned_heads": {}}
"""Fields of `fixed` of every architecture: files of earlier releases of transformers have them, which read them."""


@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """One architecture, by their name and by ours."""

    family: str
    stack: str = ""
    """Of a family whose stacks are models of their own there: which."""
    model: str
    """Class in `transformers`; its `config_class` is the config's."""
    model_type: str = ""
    """Of their config, where it is not our family's name. Several may have one, with other values of `fixed`."""
    sections: tuple[str, ...] = ()
    """Of a config whose models have one each: the sections, in which `text_config.hidden_size` is a field."""
    import_only: bool = False
    """Whether ours begins as theirs and computes more: it is imported, and theirs is no export of it."""
    numbers: dict[str, str]
    """Their field -> ours: see `config_fields.numbers_of`. Several of theirs may be one of ours (dropouts); they must
    then agree."""
    derived: dict[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """Of fields of `numbers` that no config has under that name: their config -> the value."""
    written: dict[str, str] = field(default_factory=dict)
    """The same of dropouts that may be others there: they are written, and an import says where they are others."""
    fixed: dict[str, Any]
    """Fields to which the architecture leaves one value, or a function of the other fields that gives it."""
    may_lack: frozenset[str] = frozenset()
    """Fields of `fixed` that a config may lack: their class then takes the value in `fixed`."""
    follows: dict[str, str] = field(default_factory=dict)
    """Fields of `fixed` that a config.json may lack because another field decides them -> that field."""
    contradictions: Callable[[Mapping[str, Any]], Iterable[str]] = lambda config: ()
    """Reasons, with their keys and values, why fields cannot be imported together."""
    spellings: dict[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """Of fields of `fixed` that a config may write in several ways: their config -> the value as `fixed` has it."""
    rows: tuple[TensorRule, ...]
    zeros: Callable[[ModelSpec], Mapping[str, tuple[int, ...]]] = lambda spec: {}
    """Shapes of their parameters that ours has not, because they are zero."""
    largest: dict[str, float] = field(default_factory=dict)
    """Their parameters that ours limits -> the largest value."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Patterns of names that some versions of theirs have -> what stands in `rows`, tried one after another."""
    tied: dict[str, str] = field(default_factory=dict)
    """Their parameters that are other names of parameters in `rows`: the other name -> the one in `rows`."""
    tied_if_absent: dict[str, str] = field(default_factory=dict)
    """The same of parameters that are others of ours, and that a folder may lack: theirs are then one."""
    prefix: str = ""
    """What the names of the bare model, saved without its heads (`BertModel`), begin with inside `model`."""
    special: dict[str, int | None] = field(default_factory=dict)
    """Special ids where no tokenizer says otherwise; by those of pad, begin and end, which of them the others are."""
    repeated: str = ""
    """Their table of positions, where it may have fewer than ours: its rows are then taken in turn. Of models that only
    begin here (`import_only`)."""
    repeated_from: int = 0
    """Which of its rows is that of the first place."""
    places_after_pad: bool = False
    """Whether they number the places of a text from their pad token's id on."""
    warning: Callable[[ModelSpec], str] = lambda spec: ""
    """What people who export are told, if not "": where the class says something else by the same weights."""
    unused: tuple[str, ...] = ()
    """What the names begin with of parameters that published checkpoints have, and pre-training does not."""

    @property
    def all_fixed(self) -> dict[str, Any]:
        """`fixed`, with what files of earlier releases say."""
        return OF_EARLIER_RELEASES | self.fixed

    @property
    def table(self) -> Family:
        """What it is here."""
        family = find_family(self.family)
        assert isinstance(family, Family)
        return family.alone(self.stack) if self.stack else family

    @property
    def name(self) -> str:
        """The `model_type` of their config."""
        return self.model_type or self.family

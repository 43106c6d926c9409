"""Description of a Hugging Face architecture: its config fields and tensor names, mapped to megaptm's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from megaptm.families import find_family
from megaptm.hub.tensor_rules import TensorRule
from megaptm.objectives import BaseObjective
from megaptm.spec import AttentionSpec, Block, Family, ModelSpec

if TYPE_CHECKING:
    from megaptm.hub.imported_weights import ImportedModel

# Bound of layers, heads, widths and ids: no model has more, and tensors have fewer than 2^63 elements.
MAX_VALUE = 1 << 20
FFN_RATIO = 4
"""Ratio of feed-forward width to model width, if config.json has no field for it."""
TEXT_CONFIG = "text_config"
"""Section of a config that describes the text model."""
LEGACY_END_ID = 2
"""End-of-text id of old configs. With it, `CLIPTextModel` takes the largest id of a text as its end."""
LEGACY_FIELDS = {"position_embedding_type": "absolute", "pruned_heads": {}}
"""Fixed fields of every architecture that files of earlier transformers releases contain."""


def is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_VALUE


def is_even(value: Any) -> bool:
    return is_count(value) and value % 2 == 0


def is_list(value: Any) -> bool:
    return type(value) in (list, tuple)


def is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float)


def _are_even(value: Any) -> bool:
    numbers = value if is_list(value) else [value]
    return bool(numbers) and all(map(is_even, numbers))


EVEN_NUMBERS = (f"an even number from 2 to {MAX_VALUE:,}, or a list of such numbers", _are_even)
"""Check of a config value: an even number, an entry of `Counterpart.checks`."""


@dataclass(frozen=True, kw_only=True)
class ImportOption:
    """Override of an import, `model.KEY=VALUE`, for a value of `Size.inputs` that files of a model lack."""

    read: Callable[[str], Any]
    """Function that returns the value of an import option from its text. Raises UserError for an invalid one."""
    form: str
    """Format of the value of an import option, as the help shows it: `[FEATURES,CLASSES]`."""
    models: str
    """Models that the import option is for, as in "models of image regions"."""


@dataclass(frozen=True, kw_only=True)
class Counterpart:
    """Hugging Face architecture and the megaptm family that it corresponds to."""

    family: str
    stack: str = ""
    """Stack of a family whose stacks are separate models at Hugging Face."""
    model: str
    """Class in `transformers`; its `config_class` is the class of the config."""
    model_type: str = ""
    """`model_type` in config.json, if it is not the family's name. Several counterparts may share one, with different
    values of `fixed`."""
    sections: tuple[str, ...] = ()
    """Sections of a composite config, which has one per model, such as CLIP's `text_config` and `vision_config`. A
    field is then named `text_config.hidden_size`."""
    import_only: bool = False
    """Whether megaptm's model is only initialized from the Hugging Face model and computes more: it can be imported but
    not exported."""
    fields: dict[str, str]
    """config.json field -> name in `config_fields.megaptm_values`. Several fields may map to one value (dropouts); they
    must then agree."""
    checks: dict[str, tuple[str, Callable[[Any], bool]]] = field(default_factory=dict)
    """Name of a value in `fields` that is not simply a positive integer -> description of valid values, and function
    that checks a value."""
    derived: dict[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """Fields of `fields` that are computed instead of read -> function of the Hugging Face config that returns the
    value."""
    further_values: Callable[[ModelSpec], Mapping[str, Any]] = lambda spec: {}
    """Function that returns further values by the names that `fields` uses. Raises UserError for a model that a config
    cannot express."""
    read_values: Callable[[Counterpart, dict[str, Any]], dict[str, Any]] = lambda counterpart, values: values
    """Function that returns megaptm's values of a config with those that follow from other values. Raises UserError
    for values that do not fit together."""
    read_attention: Callable[[Block, Mapping[str, Any]], AttentionSpec | tuple[AttentionSpec, ...]] | None = None
    """Function that returns the kinds of attention that layers use in turn, from megaptm's values of a config that
    lists them by layer."""
    dropout_fields: dict[str, str] = field(default_factory=dict)
    """Dropout fields of config.json with megaptm's values, if values may differ: an export writes them, and an import
    reports differences."""
    fixed: dict[str, Any]
    """Fields with one value in the architecture: the value, or a function of the other fields."""
    optional_fields: frozenset[str] = frozenset()
    """Fields of `fixed` that a config may lack: the class then uses the value in `fixed`."""
    earlier_fields: tuple[str, ...] = ()
    """Fields that only earlier releases of transformers wrote. The class computes present fields from them."""
    determined_by: dict[str, str] = field(default_factory=dict)
    """Fields of `fixed` that a config.json may lack because another field determines them -> that field."""
    contradictions: Callable[[Mapping[str, Any]], Iterable[str]] = lambda config: ()
    """Function that returns reasons, with keys and values, why fields cannot be imported together."""
    normalizers: dict[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    """Fields of `fixed` with several notations -> function of the config that returns the value in the notation of
    `fixed`."""
    rules: tuple[TensorRule, ...]
    zero_parameters: Callable[[ModelSpec], Mapping[str, tuple[int, ...]]] = lambda spec: {}
    """Function that returns shapes of Hugging Face parameters that are always zero, so that megaptm does not have
    them."""
    max_values: dict[str, float] = field(default_factory=dict)
    """Parameters in `rules` that megaptm bounds -> largest value."""
    renames: dict[str, str] = field(default_factory=dict)
    """Regular expressions of names in some versions of the files -> the names in `rules`, applied in order."""
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Part of the names of tensors in some versions of the files, each of which joins several of `rules` along the
    first axis -> that part of their names."""
    tied: dict[str, str] = field(default_factory=dict)
    """Alternative names of tied parameters in Hugging Face's files -> the name in `rules`."""
    tied_if_absent: dict[str, str] = field(default_factory=dict)
    """Parameters that are separate in megaptm and may be absent in a folder because they are tied there -> the name
    that holds their values."""
    prefix: str = ""
    """Prefix inside `model` of the names of the bare model, saved without heads (`BertModel`)."""
    unknown_id: int | None = None
    """Value of special ids in a config that are unknown, or that the vocabulary lacks, for classes that need a
    number."""
    id_fields: Callable[[dict[str, int | None]], dict[str, int | None]] = lambda ids: ids
    """Function that returns the fields of a config for special ids by their usual names."""
    special_ids: dict[str, int | None] = field(default_factory=dict)
    """Special ids of a config (`pad_token_id` ...) for models without a tokenizer. Another special id that equals one
    of pad, begin or end has the same role."""
    repeated_table: str = ""
    """Name of the position table, if it may have fewer rows than needed: rows are then repeated cyclically. Only with
    `import_only`."""
    repeated_from_row: int = 0
    """Row of the first position in the repeated position table."""
    positions_after_pad: bool = False
    """Whether positions of a text are numbered from the pad token's id on."""
    import_options: Mapping[str, ImportOption] = field(default_factory=dict)
    """Override of an import that gives the value of a key of `Size.inputs`, by key."""
    processors: tuple[str, str] = ("AutoTokenizer", "")
    """Classes of `transformers` that load the preprocessor of the model's inputs: with a tokenizer, and without."""
    write_files: Callable[[ModelSpec, Path, BaseObjective], None] = lambda spec, folder, objective: None
    """Function that writes further files to the folder of an exported model. The objective is that of the training."""
    complete_model: Callable[[ImportedModel, Path | None], ImportedModel] = lambda model, folder: model
    """Function that completes an imported model from further files of its folder, or from the list of absent weights.
    The folder is None for a model in memory."""
    complete_config: Callable[[ImportedModel, dict[str, Any]], dict[str, Any]] = lambda model, values: values
    """Function that returns the values of the default config of a run that imports a model."""
    resize: Callable[[ImportedModel, int], ImportedModel] | None = None
    """Function that returns an imported model with another context. None: its files determine the context."""
    warning: Callable[[ModelSpec], str] = lambda spec: ""
    """Function that returns a warning for exports if the class computes something else with the same weights, or ""."""
    unused_prefixes: tuple[str, ...] = ()
    """Name prefixes of parameters in published checkpoints that pre-training does not have."""

    def field_name(self, *names: str) -> str:
        """Return the field of config.json for the first of megaptm's names that has one."""
        fields = {name: field for field, name in reversed(self.fields.items())}
        return next(fields[name] for name in names if name in fields)

    @property
    def all_fixed_fields(self) -> dict[str, Any]:
        """Return the config fields with one value in the architecture (`fixed`), together with those of earlier
        releases."""
        return LEGACY_FIELDS | self.fixed

    @property
    def family_table(self) -> Family:
        """Return megaptm's family for this counterpart, or for its stack."""
        family = find_family(self.family)
        assert isinstance(family, Family)
        return family.with_only_stack(self.stack) if self.stack else family

    @property
    def config_model_type(self) -> str:
        """Return the `model_type` in config.json."""
        return self.model_type or self.family

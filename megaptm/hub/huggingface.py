"""Export to a folder that `transformers` loads, and import from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.config_fields import (
    build_spec,
    check_field_value,
    check_pad_token,
    config_values,
    find_mismatches,
    flatten_sections,
    nest_sections,
    refuse_hf_config,
)
from megaptm.hub.counterpart import LEGACY_END_ID, TEXT_CONFIG, Counterpart
from megaptm.hub.counterparts import find_counterpart, find_counterparts, import_options, is_first_of_its_type
from megaptm.hub.folder import CONFIG, REMEDY, check_folder, read_weights
from megaptm.hub.imported_weights import ImportedModel, heads_missing_in_hf_class, imported_model
from megaptm.hub.labels import label_names
from megaptm.hub.library import import_transformers, suppress_library_messages
from megaptm.hub.stacks import join_specs, join_weights, rename_to_full, split_stack
from megaptm.hub.tensor_rules import export_weights
from megaptm.hub.tokenizer import export_tokenizer
from megaptm.objectives import BaseObjective, build_objective
from megaptm.spec import ModelSpec, attention_options, change
from megaptm.storage import AtomicFile, read_json_object
from megaptm.tokenizers import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FAMILY = "megaptm_family"
"""Config field with megaptm's family, where several families have the same `model_type`."""
CARD = "README.md"
"""File of the model card."""
ROLES = {"bos_token_id": "begin", "eos_token_id": "end", "pad_token_id": "pad"}
FORCED_IDS = ("forced_bos_token_id", "forced_eos_token_id")
"""First and last token of generated text, regardless of the model's prediction; in few configs."""
SAME_IDS = {"cls_token_id": "bos_token_id", "sep_token_id": "eos_token_id"}
"""Names of token ids in a few configs, with the usual name of the id of the same token."""
SPECIAL_IDS = (*ROLES, "decoder_start_token_id", *FORCED_IDS)
ID_FIELDS = (*SPECIAL_IDS, *SAME_IDS)
"""Fields of a config for special ids."""


@dataclass(frozen=True)
class ExportedModel:
    """Exported model in Hugging Face's format."""

    classes: dict[str, str]
    """Path in the exported folder (`.` for the folder itself) -> class of `transformers` that loads it."""
    left_out: tuple[str, ...]
    """Heads of the model that the classes of `transformers` do not have."""
    processor: str
    """Class of `transformers` that prepares the exported model's inputs; empty without such a class."""
    warnings: tuple[str, ...]
    """Warnings about cases in which the classes of `transformers` compute something else."""


@suppress_library_messages()
def to_hugging_face(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    tokenizer_folder: Path | None,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    objective: BaseObjective | None = None,
    sequence: int | None = None,
    unused: Mapping[str, Tensor] | None = None,
    card: Callable[[Mapping[str, str]], str] | None = None,
) -> ExportedModel:
    """Export a model: write config, generation config, weights and tokenizer to a new folder that `transformers` loads.

    `weights`: full parameters by name. `objective`, `sequence`: those of the training; None: the family's first
    objective, and the model's context. `unused`: further parameters of an import (`ImportedModel.unused`). `card`:
    returns the model card for the classes by subfolder. The folder is written atomically.
    """
    import_transformers()
    from huggingface_hub import save_torch_state_dict

    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: export to a new folder.")
    tokenizer = None
    if tokenizer_folder is not None:
        tokenizer = load_tokenizer(tokenizer_folder)
        if tokenizer.vocabulary > spec.vocabulary:
            raise UserError(
                f"{tokenizer_folder} has {tokenizer.vocabulary} tokens, more than the {spec.vocabulary} of the model: "
                "give the tokenizer with which the model was trained."
            )
    training_objective = objective or build_objective(spec.family.objectives[0])
    if tokenizer is not None and spec.family.has_tokens:
        # `sequence` counts the positions of the first stack.
        longest = sequence if spec.family.reads_tokens(next(iter(spec.family.stacks))) else spec.max_text_length
        tokenizer = export_tokenizer(tokenizer, spec, objective=training_objective, sequence=longest or spec.context)
    models = {".": (spec, weights)}
    if spec.family.sampled:
        # The stack that reads sampled tokens is the main model; the other stacks are written to subfolders.
        stacks = {"." if stack in spec.family.sampled else stack: stack for stack in spec.family.stacks}
        models = {subfolder: split_stack(spec, weights, stack) for subfolder, stack in stacks.items()}
    start = _decoder_start(training_objective)
    converted = {subfolder: _convert_model(*model, tokenizer, dtype, start) for subfolder, model in models.items()}
    exported = {subfolder: (find_counterpart(model), model) for subfolder, (model, _) in models.items()}
    classes = {subfolder: exported[subfolder][0].model for subfolder in sorted(exported)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(folder) as unfinished:
        for subfolder, (config, generation, hf_weights) in converted.items():
            part = unfinished / subfolder
            part.mkdir(parents=True, exist_ok=True)
            exported[subfolder][0].write_files(spec, part, training_objective)
            if not spec.family.has_tokens:
                # The tokenizer holds label names, which the config includes.
                config.id2label = label_names(tokenizer, spec.vocabulary)
                config.label2id = {name: label for label, name in config.id2label.items()}
            elif tokenizer is not None:
                tokenizer.save(part)
            if spec.family.has_tokens and generation is not None:
                generation.save_pretrained(part)
            config.save_pretrained(part)
            save_torch_state_dict({**_unused_weights(unused or {}, subfolder, dtype), **hf_weights}, part)
        if card is not None:
            (unfinished / CARD).write_text(card(classes), encoding="utf-8")
    left_out = [
        head
        for counterpart, model in exported.values()
        for head in (*_heads_left_out(model, counterpart), *heads_missing_in_hf_class(model, counterpart))
    ]
    warnings = tuple(warning for counterpart, model in exported.values() if (warning := counterpart.warning(model)))
    processor = exported["."][0].processors[tokenizer is None]
    return ExportedModel(classes, tuple(left_out), processor, warnings)


def _unused_weights(unused: Mapping[str, Tensor], subfolder: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the parameters of an imported model that megaptm does not use (`ImportedModel.unused`), for a subfolder of
    the export."""
    names = {name: name.rpartition("/") for name in unused}
    return {own: unused[name].to(dtype) for name, (stack, _, own) in names.items() if (stack or ".") == subfolder}


def _heads_left_out(spec: ModelSpec, counterpart: Counterpart) -> tuple[str, ...]:
    """Return the heads that the class of `transformers` does not have, such as those added by an objective."""
    return tuple(head for head in spec.family.heads if head not in counterpart.family_table.heads)


def _convert_model(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    dtype: torch.dtype,
    start: tuple[str, ...],
) -> tuple[PretrainedConfig, Any, dict[str, Tensor]]:
    """Return config, generation config and weights of a model in Hugging Face's format; `start`:
    `BaseObjective.decoder_start`."""
    counterpart = find_counterpart(spec)
    left_out = tuple(f"head.{head}." for head in _heads_left_out(spec, counterpart))
    # Modules that extensions add to a model are used only in pre-training, too.
    own = tuple(f"{part}." for part in ("embed", *spec.family.stacks, "head"))
    known = {name: weight for name, weight in weights.items() if name.startswith(own) and not name.startswith(left_out)}
    hf_weights = export_weights(counterpart.rules, spec, known)
    hf_weights |= {name: torch.zeros(shape) for name, shape in counterpart.zero_parameters(spec).items()}
    special = _special_ids(counterpart, spec, tokenizer, start)
    check_pad_token(counterpart, special["pad_token_id"])
    if TEXT_CONFIG in counterpart.sections and special["eos_token_id"] == LEGACY_END_ID < spec.vocabulary - 1:
        raise UserError(
            f"the tokenizer's end id is {LEGACY_END_ID}, for which {counterpart.model} takes the largest id of a text "
            "as its end: the model cannot be exported. Use `megaptm.load(RUN)` in Python."
        )
    config = hugging_face_config(spec, **special)
    config.dtype = dtype
    generation = (
        None
        if TEXT_CONFIG in counterpart.sections
        else import_transformers().GenerationConfig(**special, **_max_length(spec))
    )
    return config, generation, {name: tensor.to("cpu", dtype) for name, tensor in hf_weights.items()}


@suppress_library_messages()
def from_hugging_face(
    source: Path | PreTrainedModel,
    *,
    family: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    context: int | None = None,
) -> ImportedModel:
    """Import a Hugging Face model from a folder or from memory.

    - `family`: needed if several families have the model's type. None: that in its config (`FAMILY`), or the first.
    - `inputs`: values of `Size.inputs` that no config has (`Counterpart.import_options`). Default: from the paper.
    - `context`: number of positions, if they are repeated from the model's (`Counterpart.repeated_table`).

    The bare model (`GPT2Model`, `BertModel`), or one with some of its heads, is accepted too: `absent` names what it
    lacks.
    """
    if isinstance(source, Path):
        check_folder(source)
        config = read_json_object(source / CONFIG, remedy=REMEDY)
        counterpart, spec = describe_config(config, family=family)
        state, where = read_weights(source), str(source)
    else:
        config = {**vars(source.config), **source.config.to_dict()}
        counterpart, spec = describe_config(config, family=family)
        state, where = source.state_dict(), type(source).__name__
    for key in inputs or {}:
        if key not in counterpart.import_options:
            models = import_options()[key].models
            raise UserError(f"model.{key} is for {models}, which {spec.name} is not: remove it.")
    if inputs:
        spec = replace(spec, size=change(spec.size, inputs={**spec.size.inputs, **inputs}))
    if context is not None and counterpart.repeated_table:
        spec = replace(spec, context=context)
    model = replace(
        imported_model(counterpart, spec, state, where),
        text_end=_text_end_id(counterpart, config),
        special_ids=_special_id_fields(counterpart, config),
        differing_dropouts=_differing_dropouts(counterpart, spec, config),
        settable_keys=_settable_keys(counterpart, spec),
    )
    folder = source if isinstance(source, Path) else None
    model = counterpart.complete_model(model, folder)
    return _join_stacks(model, counterpart, folder) if counterpart.stack and folder is not None else model


def _special_id_fields(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config for special ids, without those that are null or, in a few files, -1."""
    fields = flatten_sections(counterpart, config)
    return {
        name: value
        for name, value in fields.items()
        if name.rpartition(".")[2] in ID_FIELDS and value not in (None, -1)
    }


def special_ids_of_export(spec: ModelSpec, tokenizer: Tokenizer | None, objective: BaseObjective) -> dict[str, Any]:
    """Return the special ids in config.json of an exported model."""
    if spec.family.sampled:
        spec, _ = split_stack(spec, {}, next(stack for stack in spec.family.stacks if stack in spec.family.sampled))
    counterpart = find_counterpart(spec)
    if tokenizer is not None and spec.family.has_tokens:
        tokenizer = export_tokenizer(tokenizer, spec, objective=objective, sequence=spec.context)
    special = _special_ids(counterpart, spec, tokenizer, _decoder_start(objective))
    return _special_id_fields(counterpart, hugging_face_config(spec, **special).to_dict())


def _decoder_start(objective: BaseObjective) -> tuple[str, ...]:
    return objective.task_for_prompt(next(iter(objective.prompts), "text")).decoder_start


def _text_end_id(counterpart: Counterpart, config: Mapping[str, Any]) -> int | None:
    section = config.get(TEXT_CONFIG)
    usual = counterpart.special_ids.get("eos_token_id")
    return section.get("eos_token_id", usual) if TEXT_CONFIG in counterpart.sections and section else None


def _settable_keys(counterpart: Counterpart, spec: ModelSpec) -> tuple[str, ...]:
    """Return the keys of the attention pattern for which config.json has no field."""
    if not counterpart.import_only:
        return ()
    options = {name for block in spec.family.stacks.values() for name in attention_options(block)}
    return tuple(f"attention.{name}" for name in sorted(options.difference(counterpart.fields.values())))


def _join_stacks(model: ImportedModel, counterpart: Counterpart, folder: Path) -> ImportedModel:
    """Return the full model if the other stacks of a Hugging Face model are in subfolders; else this stack."""
    family = CATALOGUE[counterpart.family]
    other_stacks = [stack for stack in family.stacks if stack != counterpart.stack and (folder / stack).is_dir()]
    if counterpart.stack not in family.sampled or not other_stacks:
        return model
    parts = {**{stack: from_hugging_face(folder / stack) for stack in other_stacks}, counterpart.stack: model}
    spec = join_specs(family, {stack: part.spec for stack, part in parts.items()}, str(folder))
    records = {stack: part.spec.family.last_block.attention for stack, part in parts.items()}
    stacks = {stack: change(block, attention=records[stack]) for stack, block in spec.family.stacks.items()}
    spec = replace(spec, family=change(spec.family, stacks=stacks))
    weights = join_weights(family, {stack: part.weights for stack, part in parts.items()}, str(folder))
    absent = rename_to_full(family, {stack: part.absent for stack, part in parts.items()})
    own = {f"{stack}/{name}": tensor for stack in other_stacks for name, tensor in parts[stack].unused.items()}
    return ImportedModel(spec, weights, absent, {**model.unused, **own}, special_ids=model.special_ids)


def _differing_dropouts(counterpart: Counterpart, spec: ModelSpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of `Counterpart.dropout_fields` in which config.json differs from megaptm's model."""
    defaults, own_values = _config_class(counterpart)(), config_values(counterpart, spec)
    rates = {name: config.get(name, getattr(defaults, name)) for name in counterpart.dropout_fields}
    return tuple(f"{name} {str(value)[:20]}" for name, value in rates.items() if value != own_values[name])


def describe_config(config: Mapping[str, Any], *, family: str | None = None) -> tuple[Counterpart, ModelSpec]:
    """Return the counterpart and model spec that a Hugging Face config describes."""
    known = find_counterparts(config.get("model_type"), family or config.get(FAMILY))
    complete = [_with_defaults(counterpart, config) for counterpart in known]
    file = flatten_sections(known[0], config)
    mismatches = [find_mismatches(*pair, file) for pair in zip(known, complete, strict=True)]
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    # If families cannot be distinguished, take the first one. Among stacks of a family, take that of `architectures`.
    best = min(
        range(len(known)),
        key=lambda index: (
            len(mismatches[index]),
            known[index].family != known[0].family,
            known[index].model not in names,
        ),
    )
    if reasons := mismatches[best]:
        # If another family is equally close, its reasons are included.
        ties = [other for other in mismatches if len(other) == len(reasons) and other.keys() != reasons.keys()]
        refuse_hf_config([*reasons.values(), *(reason for other in ties for reason in other.values())])
    return known[best], build_spec(known[best], complete[best], file)


def hugging_face_config(spec: ModelSpec, **special: int | None) -> PretrainedConfig:
    """Return the Hugging Face config of a megaptm model."""
    counterpart = find_counterpart(spec)
    family_field = {} if is_first_of_its_type(counterpart) else {FAMILY: counterpart.family}
    config_class = _config_class(counterpart)
    known = {name: id_ for name, id_ in special.items() if name not in FORCED_IDS or hasattr(config_class, name)}
    known |= {own: known[name] for own, name in SAME_IDS.items() if name in known and hasattr(config_class, own)}
    if counterpart.unknown_id is not None:
        known = {name: counterpart.unknown_id if id_ is None else id_ for name, id_ in known.items()}
    ids = counterpart.id_fields(known)
    values = nest_sections(counterpart, {**config_values(counterpart, spec), **family_field, **ids})
    config = config_class(**values, architectures=[counterpart.model])
    if not spec.family.output.tied:
        # Some classes have another default but follow the weights; other readers follow this field.
        config.tie_word_embeddings = False
    return config


def _config_class(counterpart: Counterpart) -> Any:
    return getattr(import_transformers(), counterpart.model).config_class


def _with_defaults(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a Hugging Face config that determine the model: from config.json, else the defaults of
    `transformers`."""
    config_class = _config_class(counterpart)
    if counterpart.sections:
        return _with_defaults_of_sections(counterpart, config)
    # A config may use the names common to all models, such as num_hidden_layers.
    config = {config_class.attribute_map.get(name, name): value for name, value in config.items()}
    derived = {name: read(config) for name, read in counterpart.derived.items()}
    config = {**config, **derived}
    configured = {
        name: check_field_value(counterpart, name, config[name]) for name in counterpart.fields if name in config
    }
    # T5's class decides with the first whether its head scales the input, Marian's needs the ids, and older files have
    # the last two instead of `rope_parameters`.
    other_names = ("tie_word_embeddings", "pad_token_id", "decoder_start_token_id", "rope_theta", "rope_scaling")
    names = (*other_names, *counterpart.earlier_fields)
    other_values = {name: config[name] for name in names if name in config}
    # Without the published special ids, which exceed a small vocabulary: transformers would warn.
    ids = (name for name in ("bos_token_id", "eos_token_id", *SAME_IDS) if hasattr(config_class, name))
    try:
        complete = config_class(**(other_values | configured), **dict.fromkeys(ids, counterpart.unknown_id))
    except Exception as error:  # of many types
        why = str(error).splitlines()[-1].strip()[:120]
        raise UserError(f"{CONFIG}: transformers rejects it ({why}); restore the file.") from None
    known = {
        name: value
        for name, value in (vars(complete) | complete.to_dict()).items()
        if name not in counterpart.optional_fields
    }
    fixed = {name: config[name] for name in (*counterpart.all_fixed_fields, "pad_token_id") if name in config}
    return {**known, **fixed, **derived}


def _with_defaults_of_sections(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Hugging Face config with a section for each of several models, with the defaults of each section."""
    file = flatten_sections(counterpart, config)
    configured = {name: check_field_value(counterpart, name, file[name]) for name in counterpart.fields if name in file}
    configured |= {name: file[name] for name in counterpart.earlier_fields if name in file}
    try:
        complete = _config_class(counterpart)(**nest_sections(counterpart, configured))
    except Exception as error:  # of many types
        why = str(error).splitlines()[-1].strip()[:120]
        raise UserError(f"{CONFIG}: transformers rejects it ({why}); restore the file.") from None
    return flatten_sections(counterpart, complete.to_dict()) | {
        name: file[name] for name in counterpart.all_fixed_fields if name in file
    }


def _max_length(spec: ModelSpec) -> dict[str, int]:
    """Return the maximum length of text that an exported decoder with learned positions can generate. Otherwise
    `pipeline` would generate 256 tokens, beyond the table."""
    stacks = [*spec.family.stacks]
    ends = stacks == ["decoder"] or ("decoder" in stacks and spec.max_text_length is not None)
    return {"max_length": spec.context_of("decoder")} if ends else {}


def _special_ids(
    counterpart: Counterpart, spec: ModelSpec, tokenizer: Tokenizer | None, start: tuple[str, ...]
) -> dict[str, int | None]:
    """Return the special ids of an exported model's tokenizer, or the published ids if they are in the vocabulary.

    `start`: first tokens of a decoder in training. Depending on the family this is a pad token (T5) or an end token
    (BART), and possibly a fixed second token.
    """
    if tokenizer is None:
        return {
            name: value if value is not None and value < spec.vocabulary else None
            for name, value in ({name: counterpart.special_ids.get(name) for name in SPECIAL_IDS}).items()
        }
    own = {name: getattr(tokenizer.special, role) for name, role in ROLES.items()}
    # The published ids tell which role the other fields have: BART always ends text with the end token.
    names = {id_: name for name, id_ in counterpart.special_ids.items() if name in ROLES}
    derived = {
        name: own[names[counterpart.special_ids[name]]] for name in SPECIAL_IDS if name in counterpart.special_ids
    }
    if "decoder_start_token_id" in derived:
        first, *second = [getattr(tokenizer.special, role) for role in start]
        derived |= {"decoder_start_token_id": first, "forced_bos_token_id": second[0] if second else None}
    return {**own, **{name: derived.get(name) for name in SPECIAL_IDS if name not in ROLES}}

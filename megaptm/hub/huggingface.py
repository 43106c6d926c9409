"""Export to a folder that `transformers` loads, and import from one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.config_fields import check_pad, checked_number, config_values, flat, nested, reasons, refuse, spec_of
from megaptm.hub.counterparts import Counterpart, counterpart_of, counterparts_named, is_first_of_its_type
from megaptm.hub.folder import CONFIG, REMEDY, check_folder, read_weights
from megaptm.hub.image_processor import read_processor, write_processor
from megaptm.hub.images import label_names
from megaptm.hub.imported_weights import ImportedModel, heads_without_place, imported_model
from megaptm.hub.library import quiet, transformers
from megaptm.hub.stacks import alone, joined, renamed, together
from megaptm.hub.tensor_rules import export_weights
from megaptm.hub.tokenizer import exported_tokenizer
from megaptm.objectives import BaseObjective, objective_of
from megaptm.spec import PATTERN_NUMBERS, ModelSpec, change
from megaptm.storage import AtomicFile, read_json_object
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers import load as load_tokenizer

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FAMILY = "megaptm_family"
"""Config field with megaptm's family, where several families have the same `model_type`."""
ROLES = {"bos_token_id": "begin", "eos_token_id": "end", "pad_token_id": "pad"}
FORCED = ("forced_bos_token_id", "forced_eos_token_id")
"""First and last token of generated text, regardless of the model's prediction; in few configs."""
OF_TEXT = "text_config"
"""Section of a config that describes the text model."""
LARGEST_ID_ENDS = 2
"""End-of-text id with which `CLIPTextModel` uses the largest id of a text as its end."""
SPECIAL = (*ROLES, "decoder_start_token_id", *FORCED)


@dataclass(frozen=True)
class ExportedModel:
    """Result of an export."""

    classes: dict[str, str]
    """Path in the folder (`.` for the folder itself) -> class of `transformers` that loads it."""
    left_out: tuple[str, ...]
    """Heads that those classes do not have."""
    warnings: tuple[str, ...]
    """Warnings about cases in which those classes compute something else."""


@quiet()
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
) -> ExportedModel:
    """Write config, generation config, weights and tokenizer to a new folder.

    `weights`: full parameters by name. `objective`, `sequence`: those of the training; None: the family's first
    objective, and the model's context. `unused`: further parameters of an import (`ImportedModel.unused`). The folder
    is written atomically.
    """
    transformers()
    from huggingface_hub import save_torch_state_dict

    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is already there and not empty; export to a new folder.")
    tokenizer = None
    if tokenizer_folder is not None:
        tokenizer = load_tokenizer(tokenizer_folder)
        if tokenizer.vocabulary > spec.vocabulary:
            raise UserError(
                f"{tokenizer_folder} has {tokenizer.vocabulary} tokens, the model {spec.vocabulary}; "
                "give the tokenizer that the model was trained with."
            )
    trained_on = objective or objective_of(spec.family.objectives[0])
    if tokenizer is not None and spec.family.has_tokens:
        longest = spec.longest if spec.family.reads_images else sequence  # here `sequence` counts image positions
        tokenizer = exported_tokenizer(tokenizer, spec, objective=trained_on, sequence=longest or spec.context)
    models = {".": (spec, weights)}
    if spec.family.drawn:
        # The stack that reads sampled tokens is the main model; the other stacks are written to subfolders.
        places = {"." if stack in spec.family.drawn else stack: stack for stack in spec.family.stacks}
        models = {place: alone(spec, weights, stack) for place, stack in places.items()}
    start = trained_on.of_prompt(next(iter(trained_on.prompts), "text")).decoder_start
    converted = {place: _converted(*model, tokenizer, dtype, start) for place, model in models.items()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(folder) as unfinished:
        for place, (config, generation, theirs) in converted.items():
            part = unfinished / place
            part.mkdir(parents=True, exist_ok=True)
            if spec.family.reads_images:
                write_processor(spec, part, trained_on)
            if spec.family.reads_images and not spec.family.has_tokens:
                # The tokenizer holds label names, which the config includes.
                config.id2label = label_names(tokenizer, spec.vocabulary)
                config.label2id = {name: label for label, name in config.id2label.items()}
            elif tokenizer is not None:
                tokenizer.save(part)
            if not spec.family.reads_images:
                generation.save_pretrained(part)
            config.save_pretrained(part)
            save_torch_state_dict({**_besides(unused or {}, place, dtype), **theirs}, part)
    found = {place: counterpart_of(model) for place, (model, _) in models.items()}
    left_out = [
        head
        for place, (model, _) in models.items()
        for head in (*_left_out(model, found[place]), *heads_without_place(model, found[place]))
    ]
    told = (found[place].warning(model) for place, (model, _) in models.items())
    warnings = tuple(warning for warning in told if warning)
    return ExportedModel({place: found[place].model for place in sorted(found)}, tuple(left_out), warnings)


def _besides(unused: Mapping[str, Tensor], place: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the parameters of `ImportedModel.unused` for a path in the folder."""
    names = {name: name.rpartition("/") for name in unused}
    return {own: unused[name].to(dtype) for name, (stack, _, own) in names.items() if (stack or ".") == place}


def _left_out(spec: ModelSpec, counterpart: Counterpart) -> tuple[str, ...]:
    """Return the heads that the class of `transformers` does not have, such as those added by an objective."""
    return tuple(head for head in spec.family.heads if head not in counterpart.table.heads)


def _converted(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    dtype: torch.dtype,
    start: tuple[str, ...],
) -> tuple[PretrainedConfig, Any, dict[str, Tensor]]:
    """Return config, generation config and weights in Hugging Face's format; `start`: `BaseObjective.decoder_start`."""
    counterpart = counterpart_of(spec)
    # Projections to the width of a teacher are used only in pre-training, too.
    added = (*(f"head.{head}." for head in _left_out(spec, counterpart)), "distill.")
    known = {name: weight for name, weight in weights.items() if not name.startswith(added)}
    theirs = export_weights(counterpart.rows, spec, known)
    theirs |= {name: torch.zeros(shape) for name, shape in counterpart.zeros(spec).items()}
    special = _special_ids(counterpart, spec, tokenizer, start)
    check_pad(counterpart, special["pad_token_id"])
    if counterpart.sections and special["eos_token_id"] == LARGEST_ID_ENDS < spec.vocabulary - 1:
        raise UserError(
            f"the tokenizer ends texts with id {LARGEST_ID_ENDS}, by which {counterpart.model} takes the largest id of "
            "a text for its end: such a model cannot be exported; use it by `megaptm.load(RUN)` in Python."
        )
    config = hugging_face_config(spec, **special)
    config.dtype = dtype
    generation = None if counterpart.sections else transformers().GenerationConfig(**special, **_room(spec))
    return config, generation, {name: tensor.to("cpu", dtype) for name, tensor in theirs.items()}


@quiet()
def from_hugging_face(
    source: Path | PreTrainedModel,
    *,
    family: str | None = None,
    detector: tuple[int, int] | None = None,
    context: int | None = None,
) -> ImportedModel:
    """Import a model from a folder or from memory.

    - `family`: needed if several families have the model's type. None: that in its config (`FAMILY`), or the first.
    - `detector`: region detector; None: that of the paper.
    - `context`: number of positions, if they are repeated from the model's (`Counterpart.repeated`).

    The bare model (`GPT2Model`, `BertModel`), or one with some of its heads, is accepted too: `absent` names what it
    lacks.
    """
    if isinstance(source, Path):
        check_folder(source)
        config = read_json_object(source / CONFIG, remedy=REMEDY)
        counterpart, spec = described(config, family=family)
        state, where = read_weights(source), str(source)
    else:
        config = {**vars(source.config), **source.config.to_dict()}
        counterpart, spec = described(config, family=family)
        state, where = source.state_dict(), type(source).__name__
    if detector is not None:
        if not spec.family.reads_regions:
            raise UserError(f"model.detector is of regions of images, and {spec.name} reads none: leave it out.")
        spec = replace(spec, size=change(spec.size, detector=detector))
    if context is not None and counterpart.repeated:
        spec = replace(spec, context=context)
    model = replace(
        imported_model(counterpart, spec, state, where),
        text_end=_text_end(counterpart, config),
        otherwise=_otherwise(counterpart, spec, config),
        open_keys=_open_keys(counterpart, spec),
    )
    if spec.family.reads_images and isinstance(source, Path):
        return _with_processor(model, source)
    if counterpart.stack and isinstance(source, Path):
        model = _with_others(model, counterpart, source)
    return _without_lacking_decoder(model)


def _without_lacking_decoder(model: ImportedModel) -> ImportedModel:
    """Return the model without a mask decoder if the files lack its position table, as the class of `transformers`
    computes it."""
    lacking = {name.partition(".")[0] for name in model.absent if name.endswith(".place_table.weight")}
    if not lacking:
        return model
    stacks = {
        name: change(block, last_layer="once") if name in lacking else block
        for name, block in model.spec.family.stacks.items()
    }
    absent = {name: shape for name, shape in model.absent.items() if not name.endswith(".place_table.weight")}
    return replace(model, spec=replace(model.spec, family=change(model.spec.family, stacks=stacks)), absent=absent)


def _text_end(counterpart: Counterpart, config: Mapping[str, Any]) -> int | None:
    section = config.get(OF_TEXT)
    usual = counterpart.special.get("eos_token_id")
    return section.get("eos_token_id", usual) if OF_TEXT in counterpart.sections and section else None


def _open_keys(counterpart: Counterpart, spec: ModelSpec) -> tuple[str, ...]:
    """Return the parameters of the attention pattern for which config.json has no field."""
    words = {word for block in spec.family.stacks.values() for word in block.words}
    own = (name for name, of in PATTERN_NUMBERS.items() if words & {*of}) if counterpart.import_only else ()
    return tuple(name for name in own if name not in counterpart.numbers.values())


def _with_processor(model: ImportedModel, folder: Path) -> ImportedModel:
    """Return the model with the pixel statistics and options of the image processor in the folder, if there is one."""
    if (found := read_processor(model.spec, folder, remedy=REMEDY)) is None:
        return model
    return replace(model, spec=model.spec.with_pixels(found.pixels), shown=found.options)


def _with_others(model: ImportedModel, counterpart: Counterpart, folder: Path) -> ImportedModel:
    """Return the full model if the other stacks are in subfolders; else this stack."""
    family = CATALOGUE[counterpart.family]
    others = [stack for stack in family.stacks if stack != counterpart.stack and (folder / stack).is_dir()]
    if counterpart.stack not in family.drawn or not others:
        return model
    parts = {**{stack: from_hugging_face(folder / stack) for stack in others}, counterpart.stack: model}
    spec = together(family, {stack: part.spec for stack, part in parts.items()}, str(folder))
    decoders = {stack: part.spec.family.last_block.last_layer for stack, part in parts.items()}
    stacks = {stack: change(block, last_layer=decoders[stack]) for stack, block in spec.family.stacks.items()}
    spec = replace(spec, family=change(spec.family, stacks=stacks))
    weights = joined(family, {stack: part.weights for stack, part in parts.items()}, str(folder))
    absent = renamed(family, {stack: part.absent for stack, part in parts.items()})
    own = {f"{stack}/{name}": tensor for stack in others for name, tensor in parts[stack].unused.items()}
    return ImportedModel(spec, weights, absent, {**model.unused, **own})


def _otherwise(counterpart: Counterpart, spec: ModelSpec, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of `Counterpart.written` in which config.json differs from megaptm's model."""
    usual, ours = _config_class(counterpart)(), config_values(counterpart, spec)
    theirs = {name: config.get(name, getattr(usual, name)) for name in counterpart.written}
    return tuple(f"{name} {str(value)[:20]}" for name, value in theirs.items() if value != ours[name])


def described(config: Mapping[str, Any], *, family: str | None = None) -> tuple[Counterpart, ModelSpec]:
    """Return the counterpart and spec that a Hugging Face config describes."""
    known = counterparts_named(config.get("model_type"), family or config.get(FAMILY))
    complete = {one.family + one.stack: _with_defaults(one, config) for one in known}
    given = flat(known[0], config)
    refused = {one.family + one.stack: reasons(one, complete[one.family + one.stack], given) for one in known}
    said = config.get("architectures")
    named = said if isinstance(said, list) else []
    # If families cannot be distinguished, take the first one. Among stacks of a family, take that of `architectures`.
    best = min(
        known,
        key=lambda one: (len(refused[one.family + one.stack]), one.family != known[0].family, one.model not in named),
    )
    if found := refused[best.family + best.stack]:
        # If another family is equally close, its reasons are included.
        others = [other for other in refused.values() if len(other) == len(found) and other.keys() != found.keys()]
        refuse([*found.values(), *(reason for other in others for reason in other.values())])
    return best, spec_of(best, complete[best.family + best.stack], given)


def hugging_face_config(spec: ModelSpec, **special: int | None) -> PretrainedConfig:
    """Return the Hugging Face config of a model."""
    counterpart = counterpart_of(spec)
    said = {} if is_first_of_its_type(counterpart) else {FAMILY: counterpart.family}
    config_class = _config_class(counterpart)
    known = {name: id_ for name, id_ in special.items() if name not in FORCED or hasattr(config_class, name)}
    if counterpart.sections:
        # The end of a text is found by its id, or as the largest id if that is unknown.
        known |= {} if known.get("eos_token_id") is not None else {"eos_token_id": LARGEST_ID_ENDS}
        known = {f"{OF_TEXT}.{name}": id_ for name, id_ in known.items()}
    values = nested(counterpart, {**config_values(counterpart, spec), **said, **known})
    config = config_class(**values, architectures=[counterpart.model])
    if not spec.family.tied:
        # Some classes have another default but follow the weights; other readers follow this field.
        config.tie_word_embeddings = False
    return config


def _config_class(counterpart: Counterpart) -> Any:
    return getattr(transformers(), counterpart.model).config_class


def _with_defaults(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields that determine the model: from config.json, else the defaults of `transformers`."""
    config_class = _config_class(counterpart)
    if counterpart.sections:
        return _with_defaults_of_sections(counterpart, config)
    # A config may use the names common to all models, such as num_hidden_layers.
    config = {config_class.attribute_map.get(name, name): value for name, value in config.items()}
    derived = {name: read(config) for name, read in counterpart.derived.items()}
    config = {**config, **derived}
    numbers = {name: checked_number(counterpart, name, config[name]) for name in counterpart.numbers if name in config}
    # T5's class decides with the first whether its head scales the input, Marian's needs the ids, and older files have
    # the last two instead of `rope_parameters`.
    said = ("tie_word_embeddings", "pad_token_id", "decoder_start_token_id", "rope_theta", "rope_scaling")
    said_so = {name: config[name] for name in said if name in config}
    # Without the published special ids, which exceed a small vocabulary: transformers would warn.
    try:
        complete = config_class(**numbers, **said_so, bos_token_id=None, eos_token_id=None)
    except Exception as error:  # of many types
        why = str(error).splitlines()[-1].strip()[:120]
        raise UserError(f"{CONFIG}: transformers refuses it ({why}); restore it.") from None
    known = {
        name: value for name, value in (vars(complete) | complete.to_dict()).items() if name not in counterpart.may_lack
    }
    fixed = {name: config[name] for name in (*counterpart.all_fixed, "pad_token_id") if name in config}
    return {**known, **fixed, **derived}


def _with_defaults_of_sections(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `_with_defaults` of a config with a section for each of several models."""
    said = flat(counterpart, config)
    numbers = {name: checked_number(counterpart, name, said[name]) for name in counterpart.numbers if name in said}
    try:
        complete = _config_class(counterpart)(**nested(counterpart, numbers))
    except Exception as error:  # of many types
        why = str(error).splitlines()[-1].strip()[:120]
        raise UserError(f"{CONFIG}: transformers refuses it ({why}); restore it.") from None
    return flat(counterpart, complete.to_dict()) | {name: said[name] for name in counterpart.all_fixed if name in said}


def _room(spec: ModelSpec) -> dict[str, int]:
    """Return the maximum length of a decoder with learned positions. Otherwise `pipeline` would generate 256 tokens,
    beyond the table."""
    stacks = [*spec.family.stacks]
    ends = stacks == ["decoder"] or ("decoder" in stacks and spec.longest is not None)
    return {"max_length": spec.context_of("decoder")} if ends else {}


def _special_ids(
    counterpart: Counterpart, spec: ModelSpec, tokenizer: Tokenizer | None, start: tuple[str, ...]
) -> dict[str, int | None]:
    """Return the special ids of the tokenizer, or the published ids if they are in the vocabulary.

    `start`: first tokens of a decoder in training. Depending on the family this is a pad token (T5) or an end token
    (BART), and possibly a fixed second token.
    """
    if tokenizer is None:
        return {
            name: value if value is not None and value < spec.vocabulary else None
            for name, value in ({name: counterpart.special.get(name) for name in SPECIAL}).items()
        }
    own = {name: getattr(tokenizer.special, role) for name, role in ROLES.items()}
    # The published ids tell which role the others have: BART always ends text with the end token.
    names = {id_: name for name, id_ in counterpart.special.items() if name in ROLES}
    others = {name: own[names[counterpart.special[name]]] for name in SPECIAL if name in counterpart.special}
    if "decoder_start_token_id" in others:
        heard = [getattr(tokenizer.special, role) for role in start]
        others |= {"decoder_start_token_id": heard[0], "forced_bos_token_id": heard[1] if heard[1:] else None}
    return {**own, **{name: others.get(name) for name in SPECIAL if name not in ROLES}}

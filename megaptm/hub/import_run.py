"""Import of a Hugging Face model as a new run, with its weights in the checkpoint of step 0."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from megaptm import __version__
from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.config import Config, UncheckedConfig, config_to_yaml, load_config, resolve_model
from megaptm.errors import UserError
from megaptm.families import CATALOGUE, FAMILIES
from megaptm.hub.config_fields import HEAD_VALUES, SHARING_VALUES, config_values
from megaptm.hub.counterpart import LEGACY_END_ID, MAX_VALUE, Counterpart
from megaptm.hub.counterparts import COUNTERPARTS, import_options
from megaptm.hub.download import find_or_download
from megaptm.hub.folder import CONFIG as HF_CONFIG
from megaptm.hub.folder import REMEDY
from megaptm.hub.huggingface import from_hugging_face, special_ids_of_export
from megaptm.hub.imported_weights import ImportedModel
from megaptm.hub.labels import read_labels
from megaptm.hub.library import import_transformers
from megaptm.hub.tokenizer import find_contradicted_text, has_tokenizer, read_tokenizer
from megaptm.models.initial import initial_value
from megaptm.models.model import Model
from megaptm.objectives import build_objective
from megaptm.plan.count import count_parameters
from megaptm.resilience.events import Events, ImportEvent
from megaptm.resilience.lock import RunLock
from megaptm.run.compatibility import compatibility_record
from megaptm.run.corpora import refuse_larger_corpora
from megaptm.run.folder import CONFIG, absolute_paths
from megaptm.spec import Family, ModelSpec, Size, attention_options, change
from megaptm.storage import AtomicFile
from megaptm.tokenizers import Tokenizer

# Usual starting point for further training of a finished model. Everything can be changed until the first step.
RECIPE: dict[str, Any] = {
    "optimizer": {
        "lr": 5e-5,
        "weight_decay": 0.01,
        "clip": 1.0,
        "warmup_steps": 100,
        "max_warmup_ratio": 0.35,
        "decay": "linear",
    },
    "train": {"steps": 1000, "batch": 8, "log_every": 10},
}
MAX_SEQUENCE = 512
FAMILY, CONTEXT = "model.family=", "model.context="
RESIZED = ", ".join(dict.fromkeys(known.family for known in COUNTERPARTS if known.repeated_table or known.resize))
"""Families that can be imported with another context, as text for messages."""
INPUTS = {f"model.{key}=": key for key in import_options()}
IMPORT_OPTIONS = (FAMILY, CONTEXT, *INPUTS)
"""Overrides that select how a model is imported; the last of several counts. Its config determines the rest."""
IMPORT_OPTIONS_HELP = (
    ", model.family if several families have the model's type, model.attention.window and block_size if the files have "
    f"no such value, {CONTEXT}POSITIONS of {RESIZED}"
    + "".join(f", and model.{key}={option.form} of {option.models}" for key, option in import_options().items())
)
TABLES = {name: table for name, table in FAMILIES.items() if isinstance(table, Family)}
UNUSED = "unused.safetensors"
"""File of a run with the imported parameters that megaptm does not use (`ImportedModel.unused`), which an export writes
again."""


@dataclass(frozen=True)
class ImportedRun:
    """Result of importing a Hugging Face model as a run."""

    config: Config
    newly_initialized: tuple[str, ...]
    """Heads that the imported model lacks, which are initialized."""
    differing_dropouts: tuple[str, ...] = ()
    """Dropout rates of the imported model that megaptm's config cannot represent:
    `ImportedModel.differing_dropouts`."""
    unused: tuple[str, ...] = ()
    """Parameters of the imported model that megaptm does not use: `ImportedModel.unused`."""
    decoders: tuple[str, ...] = ()
    """Modules of mask decoders that the imported model lacks, which are initialized."""
    other_ids: tuple[str, ...] = ()
    """Special ids in config.json that an export of the run does not have: `_list_other_ids`."""
    contradicted_text: str | None = None
    """Text that shows that the files of the imported tokenizer contradict each other: `find_contradicted_text`."""


def import_run(
    source: str, run: str | Path, overrides: Sequence[str] = (), *, tokenizer: str | Path | None = None
) -> ImportedRun:
    """Create the run folder of an imported Hugging Face model, from a folder or the hub, atomically.

    `tokenizer`: folder of the tokenizer, if not the model's own. A run without any takes that of its corpus.
    """
    run = Path(run)
    refuse_existing_run(run)
    options = {key: text.removeprefix(key) for text in overrides for key in IMPORT_OPTIONS if text.startswith(key)}
    overrides = [text for text in overrides if not text.startswith(IMPORT_OPTIONS)]
    refuse_model_overrides(overrides, source, settable=("attention",), also=IMPORT_OPTIONS_HELP)  # before any download
    context = _parse_context(options[CONTEXT]) if CONTEXT in options else None
    folder = locate_model(source)
    model, model_tokenizer = read_imported_model(
        folder,
        tokenizer=tokenizer,
        family=options.get(FAMILY),
        inputs={key: import_options()[key].read(options[text]) for text, key in INPUTS.items() if text in options},
        context=context,
    )
    refuse_model_overrides(overrides, source, settable=model.settable_keys, also=IMPORT_OPTIONS_HELP)
    _check_trainable(model.spec, source)
    if context not in (None, model.spec.context):
        model = _with_context(model, context)
    model, decoders = _with_mask_decoder(model)
    values = _default_values(model, run)
    _check_expressed(model.spec, UncheckedConfig.from_mapping(values).load())
    config = write_run(run, source, values, overrides, model, model_tokenizer)
    other_ids = _list_other_ids(model, model_tokenizer, config)
    tokenizer_folder = folder if tokenizer is None else Path(tokenizer)
    return ImportedRun(
        config,
        model.newly_initialized,
        model.differing_dropouts,
        (*model.unused,),
        decoders,
        other_ids,
        None if model_tokenizer is None else find_contradicted_text(tokenizer_folder, model_tokenizer),
    )


def _list_other_ids(model: ImportedModel, tokenizer: Tokenizer | None, config: Config) -> tuple[str, ...]:
    """Return the special ids in config.json that differ from those of an export, as `eos_token_id 7 (here 2)`."""
    try:
        exported = special_ids_of_export(model.spec, tokenizer, config.built_objective)
    except UserError:  # a model that cannot be exported
        return ()
    return tuple(
        f"{name} {json.dumps(value)[:40]} (here {json.dumps(exported.get(name))})"
        for name, value in model.special_ids.items()
        if value != exported.get(name)
    )


def _with_context(model: ImportedModel, context: int) -> ImportedModel:
    """Return the imported model with another context. Raise UserError if its files determine the context."""
    if (resize := _find_counterpart(model.spec).resize) is not None:
        return resize(model, context)
    raise UserError(
        f"model.context ({context}): the files of a {model.spec.name} determine its number of positions; only "
        f"{RESIZED} can be imported with another one: remove it."
    )


def _find_counterpart(spec: ModelSpec) -> Counterpart:
    return next(known for known in COUNTERPARTS if known.family == spec.name)


def _with_mask_decoder(model: ImportedModel) -> tuple[ImportedModel, tuple[str, ...]]:
    """Return the imported model with its family's mask decoders, and the modules of these that it lacks."""
    spec, table = model.spec, TABLES[model.spec.name]
    stacks = {name: block.with_pretraining_components(table.stacks[name]) for name, block in spec.family.stacks.items()}
    spec = replace(spec, family=change(spec.family, stacks=stacks))
    if spec == model.spec:
        return model, ()
    with torch.device("meta"):
        shapes = {name: tuple(parameter.shape) for name, parameter in Model(spec).named_parameters()}
    lacking = {name: shape for name, shape in shapes.items() if name not in model.weights and name not in model.absent}
    decoders = tuple(dict.fromkeys(name.rpartition(".")[0] for name in lacking))
    return replace(model, spec=spec, absent={**model.absent, **lacking}), decoders


def _parse_context(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not text.strip("0"):
        raise UserError(f"{CONTEXT}{text} must be a positive integer: give the number of positions.")
    return min(int(text), MAX_VALUE)


def refuse_existing_run(run: Path) -> None:
    """Raise UserError if the run folder into which a model is imported is not empty."""
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UserError(f"{run} exists and is not empty: import to a new folder.")


def refuse_model_overrides(
    overrides: Sequence[str], source: str, *, settable: Iterable[str] = (), also: str = ""
) -> None:
    """Raise UserError if a config override contradicts the files of the model that is imported.

    `settable`: keys that the files do not determine; `also`: end of the message.
    """
    settable = ("model.dropout=", "model.attention.dropout=", *(f"model.{name}" for name in settable))
    if fixed := [key for key in overrides if key.startswith("model.") and not key.startswith(settable)]:
        raise UserError(
            f"{fixed[0]}: the files in {source} determine the model; only these keys of it can be set: model.dropout, "
            f"model.attention.dropout{also}."
        )


def write_run(
    run: Path,
    source: str,
    values: Mapping[str, Any],
    overrides: Sequence[str],
    model: ImportedModel,
    tokenizer: Tokenizer | None,
) -> Config:
    """Create the folder of a run with the imported model at step 0, and a config of `values` and overrides."""
    run.parent.mkdir(parents=True, exist_ok=True)
    with AtomicFile(run) as unfinished:
        unfinished.mkdir()
        path = unfinished / CONFIG
        path.write_text(yaml.safe_dump(dict(values)))
        config = absolute_paths(load_config(path, overrides))
        refuse_larger_corpora(config, model.spec.vocabulary)
        path.write_text(config_to_yaml(config), encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(unfinished / "tokenizer")
        if model.unused:
            save_file(dict(model.unused), unfinished / UNUSED)
        _save_checkpoint(config, complete_weights(model, seed=config.train.seed), unfinished, tokenizer)
        with Events(unfinished) as events:
            events.write(
                ImportEvent(source=source, parameters=count_parameters(model.spec), new_heads=model.newly_initialized)
            )
    return config


def locate_model(source: str | Path) -> Path:
    """Return the folder of a Hugging Face model; a model of the hub is downloaded. Raise UserError for a run of
    megaptm."""
    if (Path(source) / CONFIG).is_file():
        raise UserError(
            f"{source} is a run of megaptm: continue it with `megaptm train`, or start a new run from its weights with "
            f"train.init_from={source}."
        )
    import_transformers()  # raises UserError before any download
    return find_or_download(str(source))


def read_imported_model(
    source: str | Path,
    *,
    tokenizer: str | Path | None = None,
    family: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    context: int | None = None,
) -> tuple[ImportedModel, Tokenizer | None]:
    """Read a Hugging Face model from a folder or the hub, and its tokenizer, which is None if the model has none.
    `tokenizer`: folder of another tokenizer. `family`, `inputs`, `context`: as in `from_hugging_face`. Raise UserError
    if model and tokenizer do not match."""
    folder = locate_model(source)
    model = from_hugging_face(folder, family=family, inputs=inputs, context=context)
    if not model.spec.family.has_tokens:
        return model, read_labels(folder, HF_CONFIG, remedy=REMEDY, labels=model.spec.vocabulary)
    own = folder if tokenizer is None else Path(tokenizer)
    if tokenizer is None and not has_tokenizer(folder):
        return model, None
    own_tokenizer = read_tokenizer(own)
    if own_tokenizer.vocabulary > model.spec.vocabulary:
        raise UserError(
            f"{own}: the tokenizer has {own_tokenizer.vocabulary:,} ids, more than the {model.spec.vocabulary:,} of "
            "the model; use the model's tokenizer."
        )
    check_text_end(model, own_tokenizer, own)
    return model, own_tokenizer


def check_text_end(model: ImportedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Raise UserError if the class of `transformers` would not find the end of a text, whose hidden state is the text's
    vector."""
    end, model_end = tokenizer.special.end, model.text_end
    if model_end in (None, end) and model_end != LEGACY_END_ID:
        return
    if model_end != LEGACY_END_ID:
        raise UserError(
            f"{HF_CONFIG}: text_config.eos_token_id is {model_end}, but the tokenizer in {folder} ends texts with id "
            f"{end}, so transformers would not find the end of a text; correct one of the two."
        )
    if end != tokenizer.vocabulary - 1:
        raise UserError(
            f"{HF_CONFIG}: text_config.eos_token_id is {model_end}, for which transformers takes the largest id of a "
            f"text as its end; the tokenizer in {folder} ends texts with id {end} and has ids up to "
            f"{tokenizer.vocabulary - 1}, so such a model cannot be imported."
        )


def complete_weights(model: ImportedModel, *, seed: int) -> dict[str, Tensor]:
    """Return all parameters of the imported model. Absent ones are initialized as in a new run of this seed."""
    spec = model.spec
    return model.weights | {name: initial_value(spec, name, shape, seed) for name, shape in model.absent.items()}


def _check_trainable(spec: ModelSpec, source: str) -> None:
    """Raise UserError if an imported model can be read but not trained."""
    if (family := TABLES.get(spec.name)) is None:
        full_family = max((name for name in CATALOGUE if spec.name.startswith(f"{name}-")), key=len)
        missing = [stack for stack in CATALOGUE[full_family].stacks if stack not in spec.family.stacks]
        raise UserError(
            f"{source} is only a part of {full_family}: put its {' and '.join(missing)} into a subfolder of that name."
        )
    for stack, block in family.stacks.items():
        expected, imported = block.norm.eps, spec.family.stacks[stack].norm.eps
        if imported != expected:
            # BART's config has no such field, so its eps never differs.
            field = _find_counterpart(spec).field_name("norm_eps")
            raise UserError(
                f"{source}: {field} is {imported} ({spec.name} has {expected}); the model cannot be trained."
            )


def default_config(model: ImportedModel, run: Path) -> Config:
    """Return the default config of a run in the folder `run` that imports the model."""
    return absolute_paths(UncheckedConfig.from_mapping(_default_values(model, run)).load())


def _default_values(imported: ImportedModel, run: Path) -> dict[str, Any]:
    spec = imported.spec
    shape = _size_values(spec.size)
    stacks = {
        # A stack without a value of its own has that of the first.
        stack: {name: getattr(size, key) for name, key in HEAD_VALUES.items() if name in shape}
        | _size_values(size)
        | ({} if size.context is None else {"context": size.context})
        for stack, size in spec.size.stacks.items()
    }
    model: dict[str, Any] = {"family": spec.name, "size": _size_name(spec), **shape, "stacks": stacks}
    model |= {name: getattr(spec, name) for name in ("vocabulary", "context", "dropout")}
    own_inputs = {record.name: record for record in TABLES[spec.name].inputs}
    model |= {
        key: [*value] if isinstance(value, tuple) else value
        for record in spec.family.inputs
        if record != own_inputs[record.name]
        for key, field in record.options.items()
        for value in [getattr(record, field)]
    }
    default_block, block = TABLES[spec.name].first_block, spec.family.first_block
    sharing = {name: getattr(block.sharing, name) for name in SHARING_VALUES}
    model |= {name: value for name, value in sharing.items() if value != getattr(default_block.sharing, name)}
    options = [attention_options(own) for own in spec.family.stacks.values()]
    changed = {
        name: value
        for own, table in zip(options, TABLES[spec.name].stacks.values(), strict=True)
        for name, value in own.items()
        # A config has one value for all stacks: `_check_expressed` refuses others.
        if value != attention_options(table).get(name) and all(each.get(name, value) == value for each in options)
    }
    model |= {"attention": changed} if changed else {}
    default_objective, objective = TABLES[spec.name].objectives[0], _choose_objective(imported)
    values: dict[str, Any] = {} if objective == default_objective else {"objective": objective}
    sequence = min(MAX_SEQUENCE, *map(spec.context_of, spec.family.stacks))
    data: dict[str, Any] = {"mix": {str(run / "corpus"): 1.0}, "sequence": sequence}
    values = {"run": str(run), "model": model, "data": data, **values, **RECIPE}
    return _find_counterpart(spec).complete_config(imported, values)


def _check_expressed(spec: ModelSpec, config: Config) -> None:
    """Raise UserError if a run's config describes another model than the imported one: not every value of config.json
    has a key."""
    counterpart = _find_counterpart(spec)
    imported, own = (config_values(counterpart, each) for each in (spec, resolve_model(config)))
    if lost := [
        f"{name} is {value} (a run of {spec.name} has {own[name]})"
        for name, value in imported.items()
        if value != own[name]
    ]:
        raise UserError(f"{HF_CONFIG}: {'; '.join(lost)}, for which a run has no key; the model cannot be trained.")


def _choose_objective(imported: ImportedModel) -> str:
    """Choose an objective for an imported model: the family's first with the fewest heads that the class of
    `transformers` has and the model lacks."""
    lacking = {name.split(".")[1] for name in imported.absent if name.startswith("head.")} - imported.missing_heads
    return min(TABLES[imported.spec.name].objectives, key=lambda name: len(lacking & {*build_objective(name).losses}))


def _size_values(size: Size) -> dict[str, Any]:
    shape: dict[str, Any] = {name: getattr(size, name) for name in ("layers", "width", "heads", "ffn")}
    # The default width is left out, as in megaptm's configs, with one of which the run may continue.
    is_default = size.key_width * size.heads == size.width
    optional: dict[str, Any] = {
        "head_width": None if is_default else size.key_width,
        "embedding": size.embedding,
        "kv_heads": size.kv_heads,
        "tied": size.tied,
    }
    optional |= {key: [*value] if isinstance(value, tuple) else value for key, value in size.inputs.items()}
    return shape | {name: number for name, number in optional.items() if number is not None}


def _save_checkpoint(config: Config, weights: Mapping[str, Tensor], run: Path, tokenizer: Tokenizer | None) -> None:
    """Write the checkpoint of step 0 of an imported model: weights without moments, because there was no update."""
    start = {"samples": 0, "cursors": {}, "config": config.model_dump(), "version": __version__}
    with RunLock(run) as lock:
        store = CheckpointStore(run, fence=lock.is_held, token=lock.token)
        store.prepare(0)
        pieces = (
            TensorPiece(f"weight/{name}", tuple(value.shape), (0,) * value.dim(), tuple(value.shape), value)
            for name, value in weights.items()
        )
        store.write(0, 0, pieces)
        store.commit(
            0,
            {**compatibility_record(resolve_model(config), tokenizer.fingerprint if tokenizer else None), **start},
            ranks=1,
        )


def _size_name(spec: ModelSpec) -> str:
    def plain(size: Size) -> Size:
        # Sequence lengths are configured separately.
        stacks = {stack: plain(own) for stack, own in size.stacks.items()}
        return replace(size, head_width=size.key_width, context=None, stacks=stacks)

    sizes = TABLES[spec.name].sizes
    return next((name for name, size in sizes.items() if plain(size) == plain(spec.size)), "custom")

"""Weights of a Hugging Face model under megaptm's names, all checked before any is used."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.folder import CONFIG
from megaptm.hub.tensor_rules import HEADS, export_weights, import_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec

# `transformers` stores these with the weights of old checkpoints; they are not trained. The last one is a table of T5
# that the released code never reads.
UNTRAINED = (
    *(".attn.bias", ".attn.masked_bias", "embeddings.position_ids", "embeddings.token_type_ids"),
    "rotary_emb.inv_freq",
    "EncDecAttention.relative_attention_bias.weight",
)
# The first release of BERT has these names of norm parameters.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ImportedModel:
    """Hugging Face model whose parameters have megaptm's names."""

    spec: ModelSpec
    weights: dict[str, Tensor]
    """Full parameters by megaptm's names, float32."""
    absent: dict[str, tuple[int, ...]]
    """Shapes of the parameters of heads that the imported model lacks."""
    unused: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters in the files that megaptm's model does not have, by name; with the prefix `STACK/` for stacks that are
    separate models. An export writes them again."""
    text_end: int | None = None
    """Token id that marks the end of a text for the class of `transformers`, or `LEGACY_END_ID`. None if the class
    needs no such id."""
    special_ids: Mapping[str, Any] = field(default_factory=dict)
    """Fields of config.json for special ids (`eos_token_id` ...) that are not null."""
    differing_dropouts: tuple[str, ...] = ()
    """Dropout rates that megaptm cannot represent, as `attention_dropout 0.0`."""
    settable_keys: tuple[str, ...] = ()
    """Keys of attention patterns for which config.json has no field (families that are only imported)."""
    objective_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the objective that further files of the model determine, if they differ from the defaults."""
    missing_heads: frozenset[str] = frozenset()
    """Heads of the family that the class of `transformers` does not have."""

    @property
    def newly_initialized(self) -> tuple[str, ...]:
        """Return the modules that the imported model came without; their parameters get the initial values of a new
        model."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.absent))


def imported_model(counterpart: Counterpart, spec: ModelSpec, state: Mapping[str, Tensor], where: str) -> ImportedModel:
    """Check the tensors of a Hugging Face model and return them by megaptm's names. `where`: the folder or the class,
    for errors."""
    # A config may claim any number of layers; build only as many as the files can have tensors for.
    if spec.layers > len(state):
        raise UserError(f"{where}: {CONFIG} has {spec.layers:,} layers, but there are only {len(state):,} tensors.")
    with torch.device("meta"):
        parameters = dict(Model(spec).named_parameters())
    shapes = {name: tensor.shape for name, tensor in export_weights(counterpart.rules, spec, parameters).items()}
    state = _drop_zero_parameters(counterpart, spec, state, where)
    hf_weights, unused = _rename_parameters(counterpart, state, shapes, where)
    if (table := hf_weights.get(counterpart.repeated_table)) is not None:
        hf_weights[counterpart.repeated_table] = _repeat_positions(counterpart, spec, table, where)
    for name, tensor in hf_weights.items():
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{where}: {name} is {kind}; a quantized model cannot be trained. Use the model before quantization."
            )
        if tensor.shape != shapes[name]:
            raise UserError(
                f"{where}: {name} is {list(tensor.shape)}, but {CONFIG} needs {list(shapes[name])}; give the "
                "config and the weights of one model."
            )
        # After conversion: a float64 value may overflow in float32.
        if not tensor.float().isfinite().all():
            raise UserError(
                f"{where}: {name} has NaN or infinite values; download it again, or use a checkpoint saved before "
                "training diverged."
            )
        if name in counterpart.max_values and (value := float(tensor.max())) > counterpart.max_values[name] + 1e-4:
            raise UserError(
                f"{where}: {name} is {value:.6g}; megaptm's {counterpart.family} limits it to "
                f"{counterpart.max_values[name]:.6g}, so such a model cannot be imported."
            )
    weights, missing = import_weights(counterpart.rules, spec, hf_weights)
    if missing:
        names = _shorten_list(
            [*dict.fromkeys(missing)]
        )  # a tensor that becomes several parameters is missing only once
        raise UserError(f"{where} lacks weights of {counterpart.model}: {names}; give a complete checkpoint.")
    absent = {name: tuple(parameter.shape) for name, parameter in parameters.items() if name not in weights}
    # A model that is only an initialization for another family has another class, with other names.
    exported_unused = {} if counterpart.import_only else unused
    missing_heads = spec.family.heads if counterpart.import_only else heads_missing_in_hf_class(spec, counterpart)
    return ImportedModel(spec, weights, absent, exported_unused, missing_heads=frozenset(missing_heads))


def _drop_zero_parameters(
    counterpart: Counterpart, spec: ModelSpec, state: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """Drop the parameters of `Counterpart.zero_parameters`, which must be zero, from those of a Hugging Face model."""
    absent = counterpart.zero_parameters(spec)
    zeros = [name for name in state if name in absent or counterpart.prefix + name in absent]
    if other := [name for name in zeros if state[name].count_nonzero()]:
        # Name one of several equal layers.
        names = [*dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in sorted(other))]
        raise UserError(
            f"{where}: {', '.join(names)} must be 0, since megaptm's {counterpart.family} has no such parameters; such "
            "a model cannot be imported."
        )
    return {name: tensor for name, tensor in state.items() if name not in zeros}


def _split_tensors(counterpart: Counterpart, state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a Hugging Face model, those of `Counterpart.joined` in parts."""
    for name, tensor in state.items():
        joined = next((part for part in counterpart.joined if part in name), None)
        if joined is None or not tensor.ndim:
            yield name, tensor
            continue
        names = counterpart.joined[joined]
        parts = tensor.tensor_split(len(names))
        yield from ((name.replace(joined, own), part) for own, part in zip(names, parts, strict=True))


def _rename_parameters(
    counterpart: Counterpart, state: Mapping[str, Tensor], known: Collection[str], where: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return Hugging Face parameters by the names of `Counterpart.rules`, each once, and the unused ones by their own
    names."""
    renamed: dict[str, Tensor] = {}
    alias: dict[str, str] = {}
    unused: dict[str, Tensor] = {}
    unknown = []
    for file_name, tensor in _split_tensors(counterpart, state):
        if file_name.endswith(UNTRAINED):
            continue
        new_name = re.sub("|".join(map(re.escape, OLD_NAMES)), lambda old: OLD_NAMES[old[0]], file_name)
        for pattern, replacement in counterpart.renames.items():
            new_name = re.sub(pattern, replacement, new_name)
        full_names = (new_name, counterpart.prefix + new_name)
        names = (name if name in known else counterpart.tied.get(name, name) for name in full_names)
        name = next((name for name in names if name in known), None)
        if name is None:
            names = (name for name in full_names if name.startswith(counterpart.unused_prefixes))
            if (name := next(names, None)) is None:
                unknown.append(file_name)
            else:
                unused[name] = tensor
            continue
        if name in renamed and not torch.equal(renamed[name], tensor):
            other = alias[name] if file_name == name else file_name
            can_differ = "tie_word_embeddings" in counterpart.fields
            remedy = "set tie_word_embeddings to false in its config.json" if can_differ else "save the model again"
            raise UserError(
                f"{where}: {other} differs from {name}, but {counterpart.model} has one parameter for both: {remedy}."
            )
        renamed[name], alias[name] = tensor, file_name
    if unknown:
        remedy = (
            "save the model without its own heads (`model.base_model.save_pretrained`)"
            if renamed
            else f"none has a name of this class, such as {next(iter(known))}; save the model with `save_pretrained`"
        )
        raise UserError(
            f"{where} has parameters that {counterpart.model} does not have: {_shorten_list(unknown)}; {remedy}."
        )
    tied = {name: renamed[source] for name, source in counterpart.tied_if_absent.items() if source in renamed}
    renamed = tied | renamed
    return {name: renamed[name] for name in known if name in renamed}, unused


def _repeat_positions(counterpart: Counterpart, spec: ModelSpec, table: Tensor, where: str) -> Tensor:
    """Repeat the rows of a table of positions until there is one for each position of the model."""
    start = counterpart.repeated_from_row
    if table.dim() != 2 or len(table) <= start:
        raise UserError(
            f"{where}: {counterpart.repeated_table} has shape {list(table.shape)}, not that of a position table; "
            "restore it."
        )
    rows = start + torch.arange(spec.context) % (len(table) - start)
    return torch.cat([table[start - spec.family.embedding.first_position : start], table[rows]])


def _shorten_list(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def heads_missing_in_hf_class(spec: ModelSpec, counterpart: Counterpart) -> tuple[str, ...]:
    """Return the heads of the family for which the class of `transformers` has no parameters."""
    rules = {
        head: [rule for rule in counterpart.rules if rule.name.startswith(f"{HEADS}{head}.")]
        for head in spec.family.heads
    }
    return tuple(head for head, own in rules.items() if own and not any(rule.hf_names for rule in own))

"""Weights of a model of Hugging Face's format under our names, checked before any is taken."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.hub.counterparts import Counterpart
from megaptm.hub.folder import CONFIG
from megaptm.hub.tensor_rules import HEADS, export_weights, import_weights
from megaptm.models import build_model
from megaptm.spec import ModelSpec

# `transformers` stores these with the weights of old checkpoints; they are not trained. The last one is a table of T5
# that the released code never reads.
BUFFERS = (
    *(".attn.bias", ".attn.masked_bias", "embeddings.position_ids", "embeddings.token_type_ids"),
    "EncDecAttention.relative_attention_bias.weight",
)
# The first release of BERT has these names of norm parameters.
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ImportedModel:
    """A model of Hugging Face's format, by our names."""

    spec: ModelSpec
    weights: dict[str, Tensor]
    """Full parameters by megaptm's names, float32."""
    absent: dict[str, tuple[int, ...]]
    """Shapes of the parameters of heads that the model came without."""
    unused: Mapping[str, Tensor] = field(default_factory=dict)
    """Parameters in the files that megaptm's model does not have, by name; with the prefix `STACK/` for stacks that are
    separate models. An export writes them again."""
    text_end: int | None = None
    """Id by which the class of `transformers` finds the end of a text, or `LARGEST_ID_ENDS`; None if it needs none."""
    otherwise: tuple[str, ...] = ()
    """Dropout rates that megaptm cannot represent, as `attention_dropout 0.0`."""
    open_keys: tuple[str, ...] = ()
    """Numbers of attention patterns that config.json has no field for (families that are only imported)."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Options of an objective that prepare images as the model's processor does, if they differ from the defaults."""
    without_place: frozenset[str] = frozenset()
    """Heads of the family that the class of `transformers` does not have."""

    @property
    def fresh(self) -> tuple[str, ...]:
        """Modules that the model came without; their parameters get the initial values of a new model."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.absent))


def imported_model(counterpart: Counterpart, spec: ModelSpec, state: Mapping[str, Tensor], where: str) -> ImportedModel:
    """Check the tensors of a model and rename them; `where` is the folder or the class, for errors."""
    # A config may claim any number of layers; build only as many as the files can have tensors for.
    if spec.layers > len(state):
        raise UserError(f"{where}: its {CONFIG} says {spec.layers:,} layers, for {len(state):,} tensors.")
    with torch.device("meta"):
        whole = dict(build_model(spec).named_parameters())
    shapes = {name: tensor.shape for name, tensor in export_weights(counterpart.rows, spec, whole).items()}
    state = _without_zeros(counterpart, spec, state, where)
    theirs, unused = _canonical(counterpart, state, shapes, where)
    if (table := theirs.get(counterpart.repeated)) is not None:
        theirs[counterpart.repeated] = _repeated(counterpart, spec, table, where)
    for name, tensor in theirs.items():
        if tensor.dtype not in FLOATS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(f"{where}: {name} is {kind}; a quantized model cannot be trained, give the one it was.")
        if tensor.shape != shapes[name]:
            raise UserError(
                f"{where}: {name} is {list(tensor.shape)}, but by its {CONFIG} it is {list(shapes[name])}; give the "
                "config and the weights of one model."
            )
        # After conversion: a float64 value may overflow in float32.
        if not tensor.float().isfinite().all():
            raise UserError(
                f"{where}: {name} has numbers that are infinite or none; fetch it again, or take a model that was "
                "saved before its training failed."
            )
        if name in counterpart.largest and (value := float(tensor.max())) > counterpart.largest[name] + 1e-4:
            raise UserError(
                f"{where}: {name} is {value:.6g}; megaptm's {counterpart.family} limits it to "
                f"{counterpart.largest[name]:.6g}, so such a model cannot be imported."
            )
    weights, missing = import_weights(counterpart.rows, spec, theirs)
    if missing:
        names = _some([*dict.fromkeys(missing)])  # a tensor that becomes several parameters is missing only once
        raise UserError(f"{where} lacks weights of {counterpart.model}: {names}; give a complete checkpoint.")
    absent = {name: tuple(parameter.shape) for name, parameter in whole.items() if name not in weights}
    # A model that is only an initialization for another family has another class, with other names.
    kept = {} if counterpart.import_only else unused
    without = spec.family.heads if counterpart.import_only else heads_without_place(spec, counterpart)
    return ImportedModel(spec, weights, absent, kept, without_place=frozenset(without))


def _without_zeros(
    counterpart: Counterpart, spec: ModelSpec, state: Mapping[str, Tensor], where: str
) -> dict[str, Tensor]:
    """Return the parameters without those of `Counterpart.zeros`, which must be zero."""
    absent = counterpart.zeros(spec)
    zeros = [name for name in state if name in absent or counterpart.prefix + name in absent]
    if other := [name for name in zeros if state[name].count_nonzero()]:
        # Name one of several equal layers.
        names = [*dict.fromkeys(re.sub(r"\.\d+\.", ".N.", name) for name in sorted(other))]
        raise UserError(
            f"{where}: {', '.join(names)} must be 0, since megaptm's {counterpart.family} has no such parameters; such "
            "a model cannot be imported."
        )
    return {name: tensor for name, tensor in state.items() if name not in zeros}


def _canonical(
    counterpart: Counterpart, state: Mapping[str, Tensor], known: Collection[str], where: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters by the names of `Counterpart.rows`, each once, and the unused ones by their own names."""
    found: dict[str, Tensor] = {}
    alias: dict[str, str] = {}
    unused: dict[str, Tensor] = {}
    unknown = []
    for written, tensor in state.items():
        if written.endswith(BUFFERS):
            continue
        today = re.sub("|".join(map(re.escape, OLD_NAMES)), lambda old: OLD_NAMES[old[0]], written)
        for pattern, ours in counterpart.renamed.items():
            today = re.sub(pattern, ours, today)
        names = (counterpart.tied.get(name, name) for name in (today, counterpart.prefix + today))
        name = next((name for name in names if name in known), None)
        if name is None:
            names = (name for name in (today, counterpart.prefix + today) if name.startswith(counterpart.unused))
            if (name := next(names, None)) is None:
                unknown.append(written)
            else:
                unused[name] = tensor
            continue
        if name in found and not torch.equal(found[name], tensor):
            other = alias[name] if written == name else written
            raise UserError(f"{where}: {other} differs from {name}, with which it is one in a {counterpart.model}.")
        found[name], alias[name] = tensor, written
    if unknown:
        raise UserError(
            f"{where} has parameters that a {counterpart.model} has not: {_some(unknown)}; give the model without "
            "what was put on top of it (`model.base_model.save_pretrained`)."
        )
    found = {name: found[source] for name, source in counterpart.tied_if_absent.items() if source in found} | found
    return {name: found[name] for name in known if name in found}, unused


def _repeated(counterpart: Counterpart, spec: ModelSpec, table: Tensor, where: str) -> Tensor:
    """Repeat the rows of a table of positions until there is one for each position of the model."""
    begin = counterpart.repeated_from
    if table.dim() != 2 or len(table) <= begin:
        raise UserError(f"{where}: {counterpart.repeated} is {list(table.shape)}, no table of positions; restore it.")
    turns = torch.arange(spec.context) % (len(table) - begin)
    return torch.cat([table[begin - spec.family.first_position : begin], table[begin + turns]])


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def heads_without_place(spec: ModelSpec, counterpart: Counterpart) -> tuple[str, ...]:
    """Return the heads of the family for which the class of `transformers` has no parameters."""
    rules = {
        head: [rule for rule in counterpart.rows if rule.ours.startswith(f"{HEADS}{head}.")]
        for head in spec.family.heads
    }
    return tuple(head for head, own in rules.items() if own and not any(rule.theirs for rule in own))

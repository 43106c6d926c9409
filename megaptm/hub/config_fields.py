"""Conversion between model sizes and fields of a Hugging Face config."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from megaptm.errors import UserError
from megaptm.hub.counterparts import FFN_OF_WIDTH, OF_EARLIER_RELEASES, Counterpart, check_sharing
from megaptm.hub.folder import CONFIG
from megaptm.spec import Block, ModelSpec, Size, change

# Bound of layers, heads, widths and ids: no model has more, and tensors have fewer than 2^63 elements.
MOST = 1 << 20
OF_STACKS = ("layers", "width", "heads", "ffn")
OF_BLOCKS = (
    "norm_eps",
    "groups",
    "cycle",
    "window",
    "block",
    "random_blocks",
    "hashes",
    "hash_buckets",
    "attention",
    "chunk",
)


def numbers_of(spec: ModelSpec) -> dict[str, Any]:
    """Return megaptm's values by the names that `Counterpart.numbers` uses."""
    size, block = spec.size_of(next(iter(spec.family.stacks))), spec.family.first_block
    return {
        "layers": size.layers,
        "width": size.width,
        "heads": size.heads,
        "head_width": size.key_width,
        "kv_heads": size.key_heads,
        "ffn": size.ffn,
        "embedding": spec.size.table_width,
        "vocabulary": spec.vocabulary,
        "context": spec.context,
        "positions": spec.positions,
        "tasks": spec.family.tasks,
        "norm_eps": block.norm_eps,
        "groups": block.groups,
        "cycle": block.cycle,
        "window": [block.at(layer).window for layer in range(size.layers)],
        "block": block.block,
        "random_blocks": block.random_blocks,
        "hashes": block.hashes,
        "hash_buckets": block.hash_buckets if isinstance(block.hash_buckets, int) else [*block.hash_buckets],
        "attention": [block.at(layer).attention for layer in range(size.layers)],
        **{f"{word}_chunk": chunk for word, chunk in _chunks(block, size).items()},
        "patch": size.patch,
        "image": spec.grid * (size.patch or 1),
        "axial": [*spec.axial],
        "axial_widths": [*spec.axial_widths],
        "rounds": size.layers // block.cycle,
        "dropout": spec.dropout,
        "attention_dropout": block.attention_rate(spec.dropout),
        "logit_scale": size.width**-0.5 if spec.family.logit_scale == "rsqrt-width" else 1.0,
        **{f"{stack}.{name}": getattr(spec.size_of(stack), name) for stack in spec.family.stacks for name in OF_STACKS},
        **{f"{stack}.context": spec.context_of(stack) for stack in spec.family.stacks},
    }


def _chunks(block: Block, size: Size) -> dict[Any, Any]:
    """Return attention name -> chunk length; if no layer has this attention, the length of the other."""
    layers = [block.at(layer) for layer in range(size.layers)]
    return dict.fromkeys(("local", "lsh"), layers[0].chunk) | {one.attention: one.chunk for one in layers}


def config_values(counterpart: Counterpart, spec: ModelSpec) -> dict[str, Any]:
    """Return the fields of the Hugging Face config of this model."""
    ours = numbers_of(spec)
    said = {**counterpart.numbers, **counterpart.written}
    values = {theirs: ours[name] for theirs, name in said.items()}
    # The config class derives these itself.
    return values | {name: value for name, value in counterpart.fixed.items() if name not in counterpart.may_lack}


def nested(counterpart: Counterpart, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of sections, such as `text_config.hidden_size`, as nested dictionaries."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        section, _, field = name.rpartition(".")
        (found.setdefault(section, {}) if section in counterpart.sections else found)[field] = value
    return found


def flat(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested sections as fields; the inverse of `nested`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name in counterpart.sections:
            if not isinstance(value, Mapping):
                raise UserError(f"{CONFIG}: {name} is no object; restore it.")
            found |= {f"{name}.{field}": one for field, one in value.items()}
        else:
            found[name] = value
    return found


def checked_number(counterpart: Counterpart, theirs: str, value: Any) -> Any:
    """Return the value of a field of `numbers`. Raise UserError if no model can have it."""
    if value is None and theirs == "n_inner":
        return value
    match counterpart.numbers[theirs]:
        case "dropout" | "attention_dropout":
            wanted, good = "a number from 0 to below 1", _is_number(value) and 0 <= value < 1
        case "logit_scale":
            wanted, good = "a positive number", _is_number(value) and value > 0
        case "norm_eps":
            wanted, good = "a small positive number", _is_number(value) and 0 < value < 1
        case "window":
            # One for all layers, or a list with one per layer.
            windows = value if type(value) is list else [value]
            wanted = f"an even number from 2 to {MOST:,}, or a list of such"
            good = bool(windows) and all(type(one) is int and 2 <= one <= MOST and one % 2 == 0 for one in windows)
        case "attention":
            wanted = "a list of `local` and `lsh`, one for each layer"
            good = _is_list(value) and 0 < len(value) <= MOST and {*value} <= {"local", "lsh"}
        case "axial" | "axial_widths":
            wanted = f"two whole numbers from 1 to {MOST:,}"
            good = _is_list(value) and len(value) == 2 and all(type(one) is int and 1 <= one <= MOST for one in value)
        case "hash_buckets":
            factors = value if _is_list(value) else [value]
            wanted = f"an even number from 2 to {MOST:,}, or a list of such"
            good = bool(factors) and all(type(one) is int and 2 <= one <= MOST and one % 2 == 0 for one in factors)
        case _:
            wanted, good = f"a whole number from 1 to {MOST:,}", type(value) is int and 1 <= value <= MOST
    if not good:
        raise UserError(f"{CONFIG}: {theirs} is {str(value)[:40]!r}; it must be {wanted}.")
    return value


def _is_list(value: Any) -> bool:
    return type(value) in (list, tuple)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def reasons(counterpart: Counterpart, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Return config.json field -> reason why its value cannot be imported. `config`: with defaults; `given`:
    config.json as it is."""
    found = {}
    for name, fixed in counterpart.all_fixed.items():
        if name not in config and (name in counterpart.may_lack or name in OF_EARLIER_RELEASES):
            continue
        value = counterpart.spellings[name](config) if name in counterpart.spellings else config.get(name)
        wanted = fixed(config) if callable(fixed) else fixed
        # Absent counts as equal to 0 and false.
        if (value or None) != (wanted or None):
            field, other = f"{name} is {_brief(config.get(name))}", counterpart.follows.get(name)
            if name not in given and other is not None:
                field = f"{other} is {_brief(given[other]) if other in given else 'absent'}, so that {field}"
            found[name] = f"{field} ({counterpart.family} has {_brief(wanted)})"
    for ours, fields in _siblings(counterpart, config).items():
        if len({*map(str, fields.values())}) > 1:
            said = " and ".join(f"{name} is {_brief(value)}" for name, value in fields.items())
            found |= dict.fromkeys(fields, f"{said} ({counterpart.family} has one number for these, model.{ours})")
    for reason in counterpart.contradictions({**config, **given}):
        found[reason] = reason
    return found


def _siblings(counterpart: Counterpart, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return megaptm's number -> the config.json fields for it, with their values."""
    found: dict[str, dict[str, Any]] = {}
    for theirs, ours in counterpart.numbers.items():
        if theirs in config:  # some classes use fields without declaring them
            found.setdefault(ours, {})[theirs] = _number(counterpart, theirs, config)
    return found


def _number(counterpart: Counterpart, theirs: str, config: Mapping[str, Any]) -> Any:
    value = checked_number(counterpart, theirs, config[theirs])
    return FFN_OF_WIDTH * config["n_embd"] if theirs == "n_inner" and value is None else value


def _brief(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}..."


def refuse(found: Iterable[str]) -> NoReturn:
    """Raise one UserError with all reasons."""
    raise UserError(f"{CONFIG}: {'; '.join(dict.fromkeys(found))}; such a model cannot be imported.")


def spec_of(counterpart: Counterpart, config: Mapping[str, Any], given: Mapping[str, Any]) -> ModelSpec:
    """Return the spec that a Hugging Face config describes. Raise UserError with all fields that cannot be imported."""
    if found := reasons(counterpart, config, given):
        refuse(found.values())
    ours = {name: next(iter(fields.values())) for name, fields in _siblings(counterpart, config).items()}
    if type(windows := ours.get("window")) is list:
        layers = ours["layers"] if "layers" in ours else ours[f"{next(iter(counterpart.table.stacks))}.layers"]
        if len(windows) != layers:
            raise UserError(
                f"{CONFIG}: attention_window has {len(windows)} numbers for {layers} layers; give one, or one for each."
            )
        ours["window"] = windows[0] if len({*windows}) == 1 else tuple(windows)
    if "attention" in ours:
        ours |= _by_layer(ours)
    if "rounds" in ours:
        ours["layers"] = ours["rounds"] * ours["cycle"]
    if "ffn" not in counterpart.numbers.values():
        ours.setdefault("ffn", FFN_OF_WIDTH * ours["width"])
    family = counterpart.table
    size = _size(counterpart, [*family.stacks], ours)
    dropout = ours.get("dropout", family.dropout)
    said = {name: ours[name] for name in OF_BLOCKS if name in ours}
    if "attention_dropout" in ours and ours["attention_dropout"] != dropout:
        said["attention_dropout"] = ours["attention_dropout"]
    stacks = {name: change(block, **said) for name, block in family.stacks.items()}
    check_pad(counterpart, config.get("pad_token_id"), f"{CONFIG}: ")
    context = ours["positions"] - family.first_position if "positions" in ours else ours.get("context", family.context)
    if "image" in ours:
        if ours["image"] % ours["patch"]:
            raise UserError(
                f"{CONFIG}: {field_of(counterpart, 'patch')} ({ours['patch']}) does not divide "
                f"{field_of(counterpart, 'image')} ({ours['image']}); such a model cannot be imported."
            )
        context = (ours["image"] // ours["patch"]) ** 2 + 1
    if context < 1:
        raise UserError(
            f"{CONFIG}: {field_of(counterpart, 'positions')} is {ours['positions']}, but the first position of a text "
            f"is number {family.first_position}; restore it."
        )
    spec = ModelSpec(
        family=change(family, stacks=stacks, tasks=ours.get("tasks", family.tasks)),
        size=size,
        vocabulary=ours["vocabulary"],
        context=context,
        dropout=dropout,
    )
    if "axial" in ours and (widths := spec.axial_widths) != (pair := tuple(ours["axial_widths"])):
        raise UserError(
            f"{CONFIG}: axial_pos_embds_dim is {[*pair]} ({family.name} has {[*widths]} for hidden_size {size.width}); "
            "such a model cannot be imported."
        )
    if "axial" in ours and math.prod(ours["axial"]) != spec.context:
        raise UserError(
            f"{CONFIG}: the product of axial_pos_shape ({ours['axial']}) is not max_position_embeddings "
            f"({spec.context}); restore it."
        )
    scale = numbers_of(spec)["logit_scale"]
    if abs(ours.get("logit_scale", scale) / scale - 1) > 1e-6:
        raise UserError(
            f"{CONFIG}: logit_scale is {ours['logit_scale']} ({family.name} has {scale:.6g} for hidden_size "
            f"{size.width}); such a model cannot be imported."
        )
    check_sharing(counterpart, spec)
    return spec


def _by_layer(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention names as the shortest repeating cycle, and chunk lengths in the same cycle."""
    words = [*ours["attention"]]
    turn = next(n for n in range(1, len(words) + 1) if words == [words[layer % n] for layer in range(len(words))])
    chunks = {"local": ours["local_chunk"], "lsh": ours["lsh_chunk"]}
    factors = ours["hash_buckets"]
    return {
        "layers": len(words),
        "attention": tuple(words[:turn]) if turn > 1 else words[0],
        "chunk": tuple(chunks[word] for word in words[:turn]) if len({*chunks.values()}) > 1 else chunks["lsh"],
        "hash_buckets": tuple(factors) if _is_list(factors) else factors,
    }


def check_pad(counterpart: Counterpart, pad: int | None, where: str = "") -> None:
    """Raise UserError if the pad token has another id, which would shift all positions."""
    wanted = counterpart.table.first_position - 1
    if counterpart.places_after_pad and pad is not None and pad != wanted:
        raise UserError(
            f"{where}pad_token_id is {pad}, and {counterpart.model} numbers positions from it on ({counterpart.family} "
            f"has {wanted}); use a model and a tokenizer with the special tokens of {counterpart.family}."
        )


def field_of(counterpart: Counterpart, *ours: str) -> str:
    """Return the config.json field for the first of these numbers that has one."""
    fields = {name: theirs for theirs, name in reversed(counterpart.numbers.items())}
    return next(fields[name] for name in ours if name in fields)


def _size(counterpart: Counterpart, stacks: list[str], ours: Mapping[str, Any]) -> Size:
    def of(stack: str) -> Size:
        def number(name: str) -> int:
            found: int = ours[f"{stack}.{name}"] if f"{stack}.{name}" in ours else ours[name]
            return found

        def name_of(name: str) -> str:
            return field_of(counterpart, f"{stack}.{name}", name)

        layers, width, heads, ffn = map(number, OF_STACKS)
        if "head_width" not in ours and width % heads:
            raise UserError(
                f"{CONFIG}: {name_of('heads')} ({heads}) does not divide {name_of('width')} ({width}); restore it."
            )
        embedding, kv_heads = ours.get("embedding"), ours.get("kv_heads")
        if kv_heads is not None and heads % kv_heads:
            raise UserError(
                f"{CONFIG}: {name_of('kv_heads')} ({kv_heads}) does not divide {name_of('heads')} ({heads}); restore "
                "it."
            )
        return Size(
            layers=layers,
            width=width,
            heads=heads,
            ffn=ffn,
            head_width=ours.get("head_width"),
            kv_heads=None if kv_heads == heads else kv_heads,
            axial=tuple(ours["axial"]) if "axial" in ours else None,
            patch=ours.get("patch") if stack == stacks[0] else None,
            context=None if (own := ours.get(f"{stack}.context")) == ours.get("context") else own,
            embedding=None if embedding == width else embedding,
        )

    first, *others = map(of, stacks)
    # No Hugging Face config has a detector: use that of the paper unless another is given.
    usual = next(iter(counterpart.table.sizes.values()), None)
    first = first if usual is None else change(first, detector=usual.detector)
    return change(first, stacks={name: size for name, size in zip(stacks[1:], others, strict=True) if size != first})

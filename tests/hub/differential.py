"""Differential test of imports: change one field of a Hugging Face config, then compare logits or read the refusal."""

# B batch, S positions

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from megaptm.errors import UserError
from megaptm.hub.counterparts import COUNTERPARTS
from megaptm.hub.huggingface import FAMILY, describe_config, from_hugging_face, hugging_face_config
from megaptm.hub.import_run import complete_weights, import_run
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, change
from tests.families.vision import pixel_values
from tests.hub.reloaded import use_own_random_values
from tests.models.tiny import tiny_batch, tiny_spec
from tests.models.vision import clip_batch, tiny_clip, tiny_vit, vit_batch
from tests.parity.reference import build_with_weights, convert_inputs, replace_mask_decoder, tie_reference

TOLERANCE = 1e-5
ARCHITECTURES = {
    f"{counterpart.family}-{counterpart.stack}" if counterpart.stack else counterpart.family: counterpart
    for counterpart in COUNTERPARTS
    if not counterpart.import_only
    and counterpart.family not in ("macbert", "tinybert", "ettin", "mmbert")  # classes of BERT and ModernBERT
}
"""Name -> Hugging Face architecture, which is imported as the family of that name."""

ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh")
VALUES: dict[str, tuple[Any, ...]] = {
    "feed_forward_proj": ("relu", "gelu", "gated-gelu", "gated-silu", "gated-relu"),
    "attention_type": ("original_full", "block_sparse"),
    "attn_type": ("uni",),
    "pos_att_type": ("c2p", "p2c|c2p", ["c2p"], ["p2c", "c2p"], ["c2p", "p2c", "p2p"]),
    "norm_rel_ebd": ("none", "layer_norm"),
    "attn_layers": (["local"], ["local", "lsh"], ["lsh", "lsh"], ["lsh", "local"]),
    "rope_parameters": (
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
    ),
    "id2label": ({"0": "a", "1": "b", "2": "c"},),
    "attention_window": (4, [6, 4], [4, 4]),
    "eos_token_id": (1, 2, 3, 7, 149),
    "pad_token_id": (0, 1, 3, 7),
    "tie_word_embeddings": (True, False),
}
"""Values to test of fields whose type does not suggest any."""
UNDECLARED: dict[str, tuple[Any, ...]] = {
    "attention_head_size": (4, 16),
    "conv_act": ("tanh", "relu"),
    "conv_groups": (4,),
    "conv_kernel_size": (0, 3, 5),
    "embedding_size": (16,),
    "head_dim": (4, 16),
    "hidden_dropout": (0.2,),
    "layer_norm_eps": (1e-3,),
    "norm_rel_ebd": ("none", "layer_norm"),
    "num_hidden_groups": (2,),
    "position_buckets": (4, 16),
    "position_embedding_type": ("relative_key",),
    "share_att_key": (True, False),
    "talking_head": (True,),
}
"""Fields to add to a config that lacks them: some classes read fields that they do not declare."""
SKIPPED = ("model_type", "architectures", "megaptm_family", "transformers_version", "dtype", "_name_or_path")
SKIPPED += ("initializer_range", "initializer_factor", "init_std", "logit_scale_init_value")
"""Fields that name the model's class, or give initial values."""
FIELDS_OF_THE_BATCH = {"patch_size": (4,)}
"""Fields whose other values need another batch -> values that both sides refuse."""


DEPENDENT = {"head_dim": "query_pre_attn_scalar"}
"""Field -> field that has to follow it, which a refusal may name instead."""


ABSENT = "absent"


@dataclass(frozen=True)
class Case:
    """Hugging Face config with one other value, or without the field (`ABSENT`)."""

    field: str
    value: Any

    def __str__(self) -> str:
        return f"{self.field}={json.dumps(self.value)}"


def tiny_spec_of(name: str) -> ModelSpec:
    """Return the tiny model of an architecture."""
    counterpart = ARCHITECTURES[name]
    if name == "clip":
        return tiny_clip(layers=4)
    if name == "vit":
        return tiny_vit(layers=2, both=False)
    spec = tiny_spec(counterpart.family)
    if not counterpart.stack:
        return spec
    size = change(spec.size_of(counterpart.stack), stacks={})
    return replace(spec, family=counterpart.family_table, size=size)


def tiny_config(name: str) -> dict[str, Any]:
    """Return the config.json of the tiny model."""
    special = {key: id_ for key, id_ in ARCHITECTURES[name].special_ids.items() if id_ is not None and id_ < 10}
    config = json.loads(hugging_face_config(tiny_spec_of(name), **special).to_json_string(use_diff=False))
    own = {key: value for key, value in config.items() if key != FAMILY}
    return own if describe_config(own)[0].family == ARCHITECTURES[name].family else config


def generate_cases(name: str) -> Iterator[Case]:
    """Yield every field of the config with other values, and fields that it lacks."""
    config, sections = tiny_config(name), ARCHITECTURES[name].sections
    flat = {key: value for key, value in config.items() if key not in sections}
    flat |= {f"{section}.{key}": value for section in sections for key, value in config[section].items()}
    for field, value in flat.items():
        last = field.rpartition(".")[2]
        # CLIP's end id is compared with the tokenizer's in `check_text_end`.
        if last not in SKIPPED and field != "text_config.eos_token_id":
            # Without a size, the class builds a model of published size, which takes seconds.
            absent = () if type(value) is int and value > 2 else (ABSENT,)
            yield from (Case(field, other) for other in (*_other_values(last, value), *absent) if other != value)
    missing = {field: values for field, values in UNDECLARED.items() if field not in config and not sections}
    yield from (Case(field, value) for field, values in missing.items() for value in values)


def _other_values(field: str, value: Any) -> tuple[Any, ...]:
    if field in FIELDS_OF_THE_BATCH:
        return FIELDS_OF_THE_BATCH[field]
    if field in VALUES:
        return VALUES[field]
    match value:
        case bool():
            return (not value,)
        case int() if "position" in field:
            return (value + 1, 2 * value)  # a smaller value is an error on both sides
        case int():
            return (*{0, 1, value + 1, 2 * value, value // 2},)
        case float():
            return (0.0, 2 * value, 0.25)
        case str():
            return ACTIVATIONS
        case list():
            return (value[:1], [*value, *value[:1]], value[::-1])
        case None:
            return (1, 8, True)
        case _:
            return ()


def apply_case(config: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Return the config with the value of a case."""
    other = deepcopy(dict(config))
    *sections, field = case.field.split(".")
    node = other
    for name in sections:
        node = node[name]
    node[field] = case.value
    if case.value == ABSENT:
        del node[field]
    return other


def build_reference(name: str, config: Mapping[str, Any]) -> PreTrainedModel | None:
    """Return Hugging Face's model with random weights; None if its class refuses the config."""
    counterpart = ARCHITECTURES[name]
    model_class, zeros = (
        getattr(transformers, counterpart.model),
        {*map(_without_layer_index, counterpart.zero_parameters(tiny_spec_of(name)))},
    )
    torch.manual_seed(5)
    try:
        model = model_class(model_class.config_class.from_dict(dict(config), attn_implementation="eager"))
    except Exception:  # of many types
        return None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter += 0.1 * torch.randn(parameter.shape)
        for key, parameter in model.named_parameters():
            if _without_layer_index(key) in zeros:
                parameter.zero_()
    return use_own_random_values(tie_reference(model, counterpart).eval())


def _without_layer_index(key: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", key)


def make_batch(name: str) -> dict[str, Tensor]:
    if name == "clip":
        return clip_batch(3, seed=5, all_paired=True)
    return vit_batch(3, seed=5, both=False) if name == "vit" else tiny_batch(ARCHITECTURES[name].family, rows=1)


@torch.inference_mode()
def reference_outputs(name: str, reference_model: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor] | None:
    """Return the logits of each head, or hidden states of a class without heads; None if the class cannot compute
    them."""
    try:
        if name in ("clip", "vit"):
            model = Model(tiny_spec_of(name))
            inputs = {"pixel_values": pixel_values(model, batch["patches"])}
            if name == "vit":
                return [reference_model(**inputs, return_dict=True).logits]
            output = reference_model(input_ids=batch["text_tokens"], **inputs, return_dict=True)
            return [output.image_embeds, output.text_embeds, output.logits_per_image]
        output = reference_model(**convert_inputs(ARCHITECTURES[name].family, batch), return_dict=True)
    except Exception:  # of many types
        return None
    if name == "bert" or name == "ernie":
        return [output.prediction_logits, output.seq_relationship_logits]
    return [output.prediction_logits, output.sop_logits] if name == "albert" else [output[0]]


@torch.inference_mode()
def model_outputs(name: str, model: Model, batch: dict[str, Tensor]) -> list[Tensor]:
    """Return the same outputs of megaptm's model."""
    if name == "clip":
        features = model(batch, features=True).features["image-text"]
        images, texts, scale = features.split([(features.shape[1] - 1) // 2] * 2 + [1], -1)
        return [images, texts, scale.mean() * images @ texts.t()]
    if ARCHITECTURES[name].model == "DebertaV2Model":
        return [model.encode(batch)]
    logits = model.logits(batch)
    heads = {"bert": 2, "ernie": 2, "albert": 2}.get(name, 1)
    return [logits[head] for head in model.spec.family.heads[:heads]]


def compare(name: str, case: Case | None, folder: Path) -> str:
    """Return `equal`, `refused: MESSAGE`, `transformers refuses`, or a description of the difference."""
    config = tiny_config(name) if case is None else apply_case(tiny_config(name), case)
    batch, hf_model = make_batch(name), build_reference(name, config)
    expected = None if hf_model is None else reference_outputs(name, hf_model, batch)
    if hf_model is None or expected is None:
        return "transformers refuses"
    hf_model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        imported = from_hugging_face(folder)
    except UserError as error:
        return f"refused: {error}"
    own_model = build_with_weights(imported.spec, complete_weights(imported, seed=0))
    own_model = replace_mask_decoder(own_model) if "deberta" in name else own_model
    try:
        actual = model_outputs(name, own_model, batch)
    except Exception as error:
        return f"FAILS: {type(error).__name__} {error}"
    for actual_head, expected_head in zip(actual, expected, strict=True):
        if actual_head.shape != expected_head.shape:
            return f"OTHER SHAPE: {[*actual_head.shape]} for {[*expected_head.shape]}"
        if not (gap := (actual_head - expected_head).abs().max()) <= TOLERANCE * max(
            1.0, float(expected_head.abs().max())
        ):
            return f"OTHER OUTPUT: by {gap:.2g} of {expected_head.abs().max():.2g}"
    # Stacks that are separate models at Hugging Face are trained only together.
    return "equal" if ARCHITECTURES[name].stack else try_import_run(folder)


def try_import_run(folder: Path) -> str:
    """Import a folder as a run, whose config must describe the same model: return `equal`, `refused: MESSAGE`, or an
    error."""
    try:
        import_run(str(folder), folder.with_name(f"{folder.name}-run"))
    except UserError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"FAILS: {type(error).__name__} {error}"
    return "equal"


def find_fault(case: Case, result: str) -> str | None:
    """Return the fault of a result: other outputs, or a refusal that does not name the field."""
    if result in ("equal", "transformers refuses"):
        return None
    field = case.field.rpartition(".")[2]
    if result.startswith("refused: ") and any(name in result for name in (field, DEPENDENT.get(field, field))):
        return None
    return result


UNUSED_FIELDS = frozenset(
    (
        *("num_labels", "classifier_dropout", "cls_dropout", "summary_first_dropout", "summary_last_dropout"),
        *("summary_proj_to_labels", "onnx_export", "decoder_start_token_id", "_attn_implementation"),
        *("text_config", "vision_config", "image_size", "patch_size", "image_token_id", "mm_tokens_per_image"),
    )
)
"""Fields that a modeling file reads in other classes, in a loss, or to select a kernel."""


def list_read_fields(name: str) -> set[str]:
    """Return the config fields that the modeling file of an architecture reads."""
    model_class = getattr(transformers, ARCHITECTURES[name].model)
    attribute_map = model_class.config_class.attribute_map
    configs, fields = ("config", "text_config", "vision_config"), set()

    def is_config(node: ast.AST) -> bool:
        return getattr(node, "id", getattr(node, "attr", None)) in configs

    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[model_class.__module__]))):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            fields.add(node.attr)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("getattr", "hasattr"):
            config, *arguments = node.args
            if is_config(config) and isinstance(arguments[0], ast.Constant):
                fields.add(str(arguments[0].value))
    return {attribute_map.get(field, field) for field in fields} - UNUSED_FIELDS


def list_declared_fields(name: str) -> set[str]:
    """Return the fields that a config of an architecture declares, including properties."""
    config_class = getattr(transformers, ARCHITECTURES[name].model).config_class
    config = config_class()
    sections = [getattr(config, section) for section in ARCHITECTURES[name].sections]
    return {field for part in (config, *sections) for field in (*vars(part), *part.to_dict(), *dir(type(part)))}

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
from megaptm.hub.import_run import complete_weights
from megaptm.models import Model, build_model
from megaptm.spec import ModelSpec, change
from tests.families.vision import pixel_values
from tests.hub.reloaded import drawing_ours
from tests.models.tiny import tiny_batch, tiny_spec
from tests.models.vision import clip_batch, tiny_clip, tiny_vit, vit_batch
from tests.parity.reference import inputs_of, model_of, tied_as_said, without_decoder

TOLERANCE = 1e-5
ARCHITECTURES = {
    f"{one.family}-{one.stack}" if one.stack else one.family: one
    for one in COUNTERPARTS
    if not one.import_only and one.family not in ("macbert", "tinybert")  # BertForPreTraining, as BERT
}
"""Name -> architecture of Hugging Face; each is imported as the family of its name."""

ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh")
WORDS: dict[str, tuple[Any, ...]] = {
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
"""Values to try of fields whose type does not suggest them."""
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
"""Fields to add to a config that lacks them: some classes read them although they do not declare them."""
SKIPPED = ("model_type", "architectures", "megaptm_family", "transformers_version", "dtype", "_name_or_path")
SKIPPED += ("initializer_range", "initializer_factor", "init_std", "logit_scale_init_value")
"""Fields that name a model's class, or say how its weights begin."""
OF_BATCH = {"patch_size": (4,)}
"""Fields whose other values need another batch -> values that both sides refuse."""


ABSENT = "absent"


@dataclass(frozen=True)
class Case:
    """A config of Hugging Face with one other value, or without the field (`ABSENT`)."""

    field: str
    value: Any

    def __str__(self) -> str:
        return f"{self.field}={json.dumps(self.value)}"


def spec_of(name: str) -> ModelSpec:
    """The tiny model of an architecture."""
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


def base_config(name: str) -> dict[str, Any]:
    """The config.json of the tiny model."""
    special = {key: id_ for key, id_ in ARCHITECTURES[name].special_ids.items() if id_ is not None and id_ < 10}
    config = json.loads(hugging_face_config(spec_of(name), **special).to_json_string(use_diff=False))
    own = {key: value for key, value in config.items() if key != FAMILY}
    return own if describe_config(own)[0].family == ARCHITECTURES[name].family else config


def cases_of(name: str) -> Iterator[Case]:
    """Every field of the config with other values, and fields that it lacks."""
    config, sections = base_config(name), ARCHITECTURES[name].sections
    flat = {key: value for key, value in config.items() if key not in sections}
    flat |= {f"{section}.{key}": value for section in sections for key, value in config[section].items()}
    for field, value in flat.items():
        last = field.rpartition(".")[2]
        # The end of CLIP's texts is compared with the tokenizer (`check_text_end`).
        if last not in SKIPPED and field != "text_config.eos_token_id":
            # Without a size their class makes a published model of it, which takes seconds.
            absent = () if type(value) is int and value > 2 else (ABSENT,)
            yield from (Case(field, other) for other in (*_others(last, value), *absent) if other != value)
    missing = {field: values for field, values in UNDECLARED.items() if field not in config and not sections}
    yield from (Case(field, value) for field, values in missing.items() for value in values)


def _others(field: str, value: Any) -> tuple[Any, ...]:
    if field in OF_BATCH:
        return OF_BATCH[field]
    if field in WORDS:
        return WORDS[field]
    match value:
        case bool():
            return (not value,)
        case int() if "position" in field:
            return (value + 1, 2 * value)  # fewer than a batch has are an error on both sides
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


def changed(config: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """The config with the value of a case."""
    other = deepcopy(dict(config))
    *sections, field = case.field.split(".")
    place = other
    for section in sections:
        place = place[section]
    place[field] = case.value
    if case.value == ABSENT:
        del place[field]
    return other


def reference(name: str, config: Mapping[str, Any]) -> PreTrainedModel | None:
    """Hugging Face's model with random weights; None if its class refuses the config."""
    counterpart = ARCHITECTURES[name]
    model_class, zeros = (
        getattr(transformers, counterpart.model),
        {*map(_of_any_layer, counterpart.zero_parameters(spec_of(name)))},
    )
    torch.manual_seed(5)
    try:
        theirs = model_class(model_class.config_class.from_dict(dict(config), attn_implementation="eager"))
    except Exception:  # of many kinds
        return None
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter += 0.1 * torch.randn(parameter.shape)
        for key, parameter in theirs.named_parameters():
            if _of_any_layer(key) in zeros:
                parameter.zero_()
    return drawing_ours(tied_as_said(theirs, counterpart).eval())


def _of_any_layer(key: str) -> str:
    return re.sub(r"\.\d+\.", ".N.", key)


def batch_of(name: str) -> dict[str, Tensor]:
    if name == "clip":
        return clip_batch(3, seed=5, all_asked=True)
    return vit_batch(3, seed=5, both=False) if name == "vit" else tiny_batch(ARCHITECTURES[name].family, rows=1)


@torch.inference_mode()
def their_outputs(name: str, theirs: PreTrainedModel, batch: dict[str, Tensor]) -> list[Tensor] | None:
    """Logits of each head, or vectors of a class without heads; None if the class cannot compute them."""
    try:
        if name in ("clip", "vit"):
            model = build_model(spec_of(name))
            inputs = {"pixel_values": pixel_values(model, batch["patches"])}
            if name == "vit":
                return [theirs(**inputs, return_dict=True).logits]
            said = theirs(input_ids=batch["text_tokens"], **inputs, return_dict=True)
            return [said.image_embeds, said.text_embeds, said.logits_per_image]
        said = theirs(**inputs_of(ARCHITECTURES[name].family, batch), return_dict=True)
    except Exception:  # of many kinds
        return None
    if name == "bert" or name == "ernie":
        return [said.prediction_logits, said.seq_relationship_logits]
    return [said.prediction_logits, said.sop_logits] if name == "albert" else [said[0]]


@torch.inference_mode()
def our_outputs(name: str, model: Model, batch: dict[str, Tensor]) -> list[Tensor]:
    """The same of ours."""
    if name == "clip":
        features = model(batch, features=True).features["image-text"]
        images, texts, scale = features.split([(features.shape[1] - 1) // 2] * 2 + [1], -1)
        return [images, texts, scale.mean() * images @ texts.t()]
    if ARCHITECTURES[name].model == "DebertaV2Model":
        return [model.encode(batch)]
    said = model.logits(batch)
    heads = {"bert": 2, "ernie": 2, "albert": 2}.get(name, 1)
    return [said[head] for head in model.spec.family.heads[:heads]]


def outcome(name: str, case: Case | None, folder: Path) -> str:
    """`equal`, `refused: SENTENCE`, `transformers refuses`, or what is wrong."""
    config = base_config(name) if case is None else changed(base_config(name), case)
    batch, theirs = batch_of(name), reference(name, config)
    expected = None if theirs is None else their_outputs(name, theirs, batch)
    if theirs is None or expected is None:
        return "transformers refuses"
    theirs.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    try:
        found = from_hugging_face(folder)
    except UserError as error:
        return f"refused: {error}"
    ours = model_of(found.spec, complete_weights(found, seed=0))
    ours = without_decoder(ours) if "deberta" in name else ours
    try:
        said = our_outputs(name, ours, batch)
    except Exception as error:
        return f"FAILS: {type(error).__name__} {error}"
    for one, two in zip(said, expected, strict=True):
        if one.shape != two.shape:
            return f"OTHER SHAPE: {[*one.shape]} for {[*two.shape]}"
        if not (gap := (one - two).abs().max()) <= TOLERANCE * max(1.0, float(two.abs().max())):
            return f"OTHER OUTPUT: by {gap:.2g} of {two.abs().max():.2g}"
    return "equal"


def fault(case: Case, said: str) -> str | None:
    """Return the fault of an outcome: other outputs, or a refusal that does not name the field."""
    if said in ("equal", "transformers refuses"):
        return None
    if said.startswith("refused: ") and case.field.rpartition(".")[2] in said:
        return None
    return said


OF_OTHER_CLASSES = frozenset(
    (
        *("num_labels", "classifier_dropout", "cls_dropout", "summary_first_dropout", "summary_last_dropout"),
        *("summary_proj_to_labels", "onnx_export", "decoder_start_token_id", "_attn_implementation"),
        *("text_config", "vision_config"),
    )
)
"""Fields that a modeling file reads in classes without pre-training, of a loss, or as a choice of kernel."""


def fields_read(name: str) -> set[str]:
    """Names that the modeling file of an architecture reads of a config."""
    model_class = getattr(transformers, ARCHITECTURES[name].model)
    names = model_class.config_class.attribute_map
    configs, found = ("config", "text_config", "vision_config"), set()

    def is_config(node: ast.AST) -> bool:
        return getattr(node, "id", getattr(node, "attr", None)) in configs

    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[model_class.__module__]))):
        if isinstance(node, ast.Attribute) and is_config(node.value):
            found.add(node.attr)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("getattr", "hasattr"):
            config, *others = node.args
            if is_config(config) and isinstance(others[0], ast.Constant):
                found.add(str(others[0].value))
    return {names.get(field, field) for field in found} - OF_OTHER_CLASSES


def known_fields(name: str) -> set[str]:
    """Fields that a config of an architecture declares, with attributes that are functions of transformers."""
    config_class = getattr(transformers, ARCHITECTURES[name].model).config_class
    config = config_class()
    sections = [getattr(config, section) for section in ARCHITECTURES[name].sections]
    return {field for one in (config, *sections) for field in (*vars(one), *one.to_dict(), *dir(type(one)))}

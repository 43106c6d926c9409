"""A folder that `transformers` loads, from our weights; and our weights, from such a folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.hub.counterparts import Counterpart, config_values, counterpart_named, counterpart_of, spec_of
from megaptm.hub.tables import export_weights, import_weights
from megaptm.spec import ModelSpec
from megaptm.storage import Appearing

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# `transformers` keeps these with the weights of old checkpoints; they hold no knowledge.
BUFFERS = (".attn.bias", ".attn.masked_bias", "embeddings.position_ids", "embeddings.token_type_ids")


def to_hugging_face(
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    tokenizer_folder: Path | None,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Writes config, generation config, weights and tokenizer to a new folder.

    `weights` are whole parameters by their global names. The folder appears when it is complete, or not at all.
    """
    from huggingface_hub import save_torch_state_dict
    from transformers import GenerationConfig

    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is already there and not empty; export to a new folder.")
    counterpart = counterpart_of(spec)
    theirs = export_weights(counterpart.rows, spec, weights)
    special = _special_ids(counterpart, spec, tokenizer_folder)
    config = hugging_face_config(spec, **special)
    config.dtype = dtype
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Appearing(folder) as unfinished:
        unfinished.mkdir()
        if tokenizer_folder is not None:
            shutil.copytree(tokenizer_folder, unfinished, dirs_exist_ok=True)
        config.save_pretrained(unfinished)
        GenerationConfig(**special).save_pretrained(unfinished)
        save_torch_state_dict({name: tensor.to("cpu", dtype) for name, tensor in theirs.items()}, unfinished)


def from_hugging_face(source: str | Path | PreTrainedModel) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The spec and the whole parameters, float32, of a model in memory, in a folder, or on the hub."""
    import transformers

    model = _load(source) if isinstance(source, str | Path) else source
    assert isinstance(model, transformers.PreTrainedModel)
    counterpart = counterpart_named(model.config.model_type)
    spec = spec_of(counterpart, {**vars(model.config), **model.config.to_dict()})
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(BUFFERS)}
    weights = import_weights(counterpart.rows, spec, state)
    converted = set(export_weights(counterpart.rows, spec, weights)) | set(counterpart.tied)
    if unknown := sorted(set(state) - converted):
        raise UserError(f"The {counterpart.model} has parameters that {spec.name} has not: {', '.join(unknown[:5])}.")
    return spec, weights


def hugging_face_config(spec: ModelSpec, **special: int | None) -> PretrainedConfig:
    """Their config of our model."""
    import transformers

    counterpart = counterpart_of(spec)
    config_class: Any = getattr(transformers, counterpart.model).config_class
    return config_class(**config_values(counterpart, spec), architectures=[counterpart.model], **special)


def _load(source: str | Path) -> PreTrainedModel:
    import transformers

    config = transformers.AutoConfig.from_pretrained(source)
    # By type, not by the architecture that the config names: bert-base-uncased names one without its sentence head.
    named = counterpart_named(config.model_type).model
    model_class = getattr(transformers, named)
    model, info = model_class.from_pretrained(source, output_loading_info=True, dtype=torch.float32)
    if missing := sorted(info["missing_keys"]):
        # transformers would have made these up at random, with a warning.
        raise UserError(f"{source} lacks weights of {named}: {', '.join(missing[:5])}; give a complete checkpoint.")
    return model


def _special_ids(counterpart: Counterpart, spec: ModelSpec, tokenizer_folder: Path | None) -> dict[str, int | None]:
    """What the tokenizer says, or the published ids where they are inside the vocabulary."""
    if tokenizer_folder is None:
        return {
            name: value if value is not None and value < spec.vocabulary else None
            for name, value in ({name: counterpart.special.get(name) for name in SPECIAL}).items()
        }
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    if len(tokenizer) > spec.vocabulary:
        raise UserError(
            f"{tokenizer_folder} has {len(tokenizer)} tokens, the model {spec.vocabulary}; "
            "give the tokenizer that the model was trained with."
        )
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    starts_with_pad = "decoder_start_token_id" in counterpart.special
    return {**ids, "decoder_start_token_id": ids["pad_token_id"] if starts_with_pad else None}

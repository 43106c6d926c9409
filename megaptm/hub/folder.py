"""Reading of a model folder in Hugging Face's format as data: JSON and safetensors; no code, no pickle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from megaptm.errors import UserError
from megaptm.storage import FileName, Record, read_json_object, validate

if TYPE_CHECKING:
    from torch import Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
QUANTIZATION = "quantization_config"
"""Field of a config that names how the weights are quantized."""
# Fields with which `transformers` would run code of the folder, if allowed.
CODE_FIELDS = ("auto_map", "custom_pipelines")
JSON_FILES = (CONFIG, "tokenizer_config.json")
REMEDY = "restore it from where the model came from"
LFS_POINTER = b"version https://git-lfs"

CONVERT_REMEDY = (
    'if you trust its author, convert it with `python -c "import glob, torch, huggingface_hub as hub; '
    "hub.save_torch_state_dict({{name: value for file in glob.glob('{0}/pytorch_model*.bin') for name, value in "
    "torch.load(file, map_location='cpu', weights_only=True).items()}}, '{0}')\"`."
)


class WeightIndex(Record):
    """Content of the index file of a Hugging Face model folder: tensor name -> file."""

    weight_map: dict[str, FileName]


def check_folder(folder: Path) -> None:
    """Raise UserError if a folder is not a Hugging Face model folder, or one with its own code or pickled weights."""
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {problem}: give a folder with {CONFIG}, {WEIGHTS} and a tokenizer.")
    if not (folder / CONFIG).is_file():
        problem = "has no " + CONFIG if any(folder.iterdir()) else "is empty"
        raise UserError(f"{folder} {problem}: give a folder that `save_pretrained` of transformers wrote.")
    for name in JSON_FILES:
        content = read_json_object(folder / name, remedy=REMEDY) if (folder / name).is_file() else {}
        if field := next((key for key in CODE_FIELDS if content.get(key)), None):
            raise UserError(
                f"{folder / name}: {field} names code in the model's folder, which megaptm never runs; give a model "
                "whose class is part of transformers."
            )
        if name == CONFIG and (quantization := content.get(QUANTIZATION)):
            method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
            raise UserError(
                f"{folder / name}: {QUANTIZATION} is of method {str(method)[:40]!r}; a quantized model cannot be "
                "trained. Use the model before quantization."
            )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of a Hugging Face model folder by their names in the files, memory-mapped: bytes are read on
    use."""
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        for name, tensor in read_tensors(file):
            if name in weights:
                raise UserError(f"{file}: {name} is also in another file of this folder; save the model again.")
            weights[name] = tensor
    return weights


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        index = validate(WeightIndex, read_json_object(folder / INDEX, remedy=REMEDY), folder / INDEX, remedy=REMEDY)
        names = sorted(set(index.weight_map.values()))
        if missing := next((name for name in names if not (folder / name).is_file()), None):
            raise UserError(f"{folder / INDEX} lists {missing}, which is not in the folder: add the file.")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if any(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"{folder} has no {WEIGHTS}, only pickled weights, which can run code when they are loaded; "
            + CONVERT_REMEDY.format(folder)
        )
    other_files = sorted(file.name for file in folder.glob("*.safetensors"))
    if (folder / ADAPTER).is_file() or other_files == ["adapter_model.safetensors"]:
        raise UserError(
            f"{folder} has no {WEIGHTS}, only an adapter: merge it into its model with `merge_and_unload` of peft, and "
            "save that with `save_pretrained`."
        )
    if other_files:
        raise UserError(
            f"{folder} has no {WEIGHTS} and no {INDEX}, which names its parts ({other_files[0]}): add the file."
        )
    raise UserError(f"{folder} has no {WEIGHTS}: give a model saved as safetensors, as `save_pretrained` does.")


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a safetensors file with their names."""
    from safetensors import SafetensorError, safe_open

    with file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
            raise UserError(f"{file} is a Git LFS pointer, not the weights: download them with `git lfs pull`.")
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                yield name, tensors.get_tensor(name)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} is damaged or cut off ({error}): fetch it again.") from None

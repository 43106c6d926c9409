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
# With such fields `transformers` would run code of the folder, if allowed.
OWN_CODE = ("auto_map", "custom_pipelines")
FILES_OF_JSON = (CONFIG, "tokenizer_config.json")
REMEDY = "restore it from where the model came from"
LFS_POINTER = b"version https://git-lfs"

CONVERT = (
    'if you trust who made it, convert it with `python -c "import glob, torch, huggingface_hub as hub; '
    "hub.save_torch_state_dict({{name: value for file in glob.glob('{0}/pytorch_model*.bin') for name, value in "
    "torch.load(file, map_location='cpu', weights_only=True).items()}}, '{0}')\"`."
)


class Index(Record):
    """Content of the index file: tensor name -> file."""

    weight_map: dict[str, FileName]


def check_folder(folder: Path) -> None:
    """Raise UserError if this is not a model folder, or one with its own code or pickled weights."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}: give a folder with {CONFIG}, {WEIGHTS} and a tokenizer.")
    if not (folder / CONFIG).is_file():
        what = "has no " + CONFIG if any(folder.iterdir()) else "is empty"
        raise UserError(f"{folder} {what}: give a folder that `save_pretrained` of transformers wrote.")
    for name in FILES_OF_JSON:
        content = read_json_object(folder / name, remedy=REMEDY) if (folder / name).is_file() else {}
        if own := next((key for key in OWN_CODE if content.get(key)), None):
            raise UserError(
                f"{folder / name}: {own} names code that comes with the model, which is never run here; give a model "
                "of transformers' own classes."
            )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors by their names in the files, memory-mapped: bytes are read on use."""
    weights: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        for name, tensor in read_tensors(file):
            if name in weights:
                raise UserError(f"{file}: {name} is in another file of this folder too; save the model again.")
            weights[name] = tensor
    return weights


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file() and not (folder / WEIGHTS).is_file():
        index = validate(Index, read_json_object(folder / INDEX, remedy=REMEDY), folder / INDEX, remedy=REMEDY)
        names = sorted(set(index.weight_map.values()))
        if missing := next((name for name in names if not (folder / name).is_file()), None):
            raise UserError(f"{folder / INDEX} names {missing}, which is not there: complete the folder.")
        return [folder / name for name in names]
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if any(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"{folder} has its weights as a pickle, which can run code when it is read, and no {WEIGHTS}; "
            + CONVERT.format(folder)
        )
    raise UserError(f"{folder} has no {WEIGHTS}: give a model saved as safetensors, as `save_pretrained` does.")


def read_tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a safetensors file with their names."""
    from safetensors import SafetensorError, safe_open

    with file.open("rb") as opened:
        if opened.read(len(LFS_POINTER)) == LFS_POINTER:
            raise UserError(f"{file} only points to the weights: fetch them with `git lfs pull`.")
    try:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                yield name, tensors.get_tensor(name)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{file} is damaged or cut off ({error}): fetch it again.") from None

"""Import of an ELMo in the files of the released code (HDF5 or safetensors) as a new run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor

from megaptm.config import Config, UncheckedConfig, resolve_model
from megaptm.errors import UserError
from megaptm.families.elmo import ELMO
from megaptm.families.elmo.bilm import from_bilm, to_bilm
from megaptm.families.elmo.exporter import SOFTMAX
from megaptm.families.elmo.hdf5 import read_hdf5
from megaptm.families.elmo.spec import MAX_WORD_LENGTH, ProjectedLSTMSpec
from megaptm.families.elmo.spelling import NUM_CHARACTERS
from megaptm.hub.folder import read_tensors
from megaptm.hub.import_run import RECIPE, refuse_existing_run, refuse_model_overrides, write_run
from megaptm.hub.imported_weights import ImportedModel
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size
from megaptm.storage import Record, read_json_object, read_text_file, validate
from megaptm.tokenizers import Tokenizer, load_tokenizer
from megaptm.tokenizers.listed_words import make_word_tokenizer

HEAD = "head.bidirectional-lm"
REMEDY = "give the options.json that came with the weights"
# As in `configs/elmo`: the released code's learning rate, for the loss per word.
OPTIMIZER = {
    "name": "adagrad",
    "lr": 0.2,
    "decay": "constant",
    "initial_accumulator": 0.0025,
    "weight_decay": 0.0,
    "clip": 0.5,
}

_Count = Annotated[int, Field(ge=1, le=1_000_000)]


class ElmoLSTM(Record):
    """Field `lstm` of a released ELMo's options.json."""

    use_skip_connections: bool = False
    projection_dim: _Count
    cell_clip: float
    proj_clip: float
    dim: _Count
    n_layers: Annotated[int, Field(ge=1, le=1_000)]


class ElmoCharacterEmbedding(Record):
    """Field `embedding` of `char_cnn` in a released ELMo's options.json."""

    dim: _Count


class ElmoCharacterCNN(Record):
    """Field `char_cnn` of a released ELMo's options.json."""

    activation: str
    filters: Annotated[
        list[Annotated[list[_Count], Field(min_length=2, max_length=2)]], Field(min_length=1, max_length=100)
    ]
    n_highway: Annotated[int, Field(ge=0, le=100)]
    embedding: ElmoCharacterEmbedding
    n_characters: _Count
    max_characters_per_token: _Count


class ElmoOptions(Record):
    """Content of the released code's options.json."""

    lstm: ElmoLSTM
    char_cnn: ElmoCharacterCNN


@dataclass(frozen=True)
class ElmoFiles:
    """Paths of the files of a released ELMo."""

    options: Path
    weights: Path
    words: Path
    """Path of a released ELMo's word list, or of the folder of a tokenizer."""
    softmax: Path | None


def import_elmo(folder: str | Path, run: str | Path, overrides: Sequence[str] = ()) -> tuple[Config, tuple[str, ...]]:
    """Import an ELMo: create the run folder from a folder with options, weights and words. Return its config, and the
    heads that the model lacks, which are initialized."""
    folder, run = Path(folder), Path(run)
    refuse_existing_run(run)
    refuse_model_overrides(overrides, str(folder))
    files = find_files(folder)
    tokenizer = _read_tokenizer(files.words)
    options = validate(ElmoOptions, read_json_object(files.options, remedy=REMEDY), files.options, remedy=REMEDY)
    values = _config_values(options, files.options, tokenizer.vocabulary, run)
    spec = resolve_model(UncheckedConfig.from_mapping(values).load())
    model = read_model(spec, files)
    return write_run(run, str(folder), values, overrides, model, tokenizer), model.newly_initialized


def find_files(folder: Path) -> ElmoFiles:
    """Find the files of a released ELMo by the ends of their names; published ones start with the model's name."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give one with options.json, weights.hdf5 and a list of words.")
    options = _find_file(folder, "*options.json", "options.json, which describes the model")
    weights = _find_file(folder, "*weights.hdf5", "weights.hdf5, or weights.safetensors", "*weights.safetensors")
    tokenizer, softmax = folder / "tokenizer.json", folder / SOFTMAX
    words = folder if tokenizer.is_file() else _find_file(folder, "vocab*.txt", "vocabulary.txt with a word per line")
    return ElmoFiles(options, weights, words, softmax if softmax.is_file() else None)


def _find_file(folder: Path, pattern: str, description: str, other: str | None = None) -> Path:
    matches = _list_files(folder, pattern) or (_list_files(folder, other) if other else [])
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"{folder} has {matches[0].name} and {matches[1].name}: remove one of them.")
    raise UserError(f"{folder} has no {pattern}: add {description}.")


def _list_files(folder: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(folder.glob(pattern)) if path.is_file()]


def read_model(spec: ModelSpec, files: ElmoFiles) -> ImportedModel:
    """Read the weights of a released ELMo. The softmax is absent if it was not published, as for the released
    models."""
    with torch.device("meta"):
        parameters = {name: parameter.detach() for name, parameter in Model(spec).named_parameters()}
    shapes = {name: tuple(tensor.shape) for name, tensor in to_bilm(parameters, spec).items()}
    if files.weights.suffix == ".hdf5":
        tensors = _check_finite(read_hdf5(files.weights, shapes), files.weights)
    else:
        tensors = _check_shapes(dict(read_tensors(files.weights)), shapes, files.weights)
    weights = from_bilm(tensors, spec)
    if files.softmax is not None:
        softmax_shapes = {"W": (spec.vocabulary, spec.size.width), "b": (spec.vocabulary,)}
        softmax = _check_shapes(dict(read_tensors(files.softmax)), softmax_shapes, files.softmax)
        for name, tensor in ((f"{HEAD}.table.weight", softmax["W"]), (f"{HEAD}.vocabulary.bias", softmax["b"])):
            weights[name] = torch.zeros(parameters[name].shape)
            weights[name][: spec.vocabulary] = tensor
    absent = {name: tuple(parameter.shape) for name, parameter in parameters.items() if name not in weights}
    return ImportedModel(spec, weights, absent)


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Check that the tensors of a released ELMo are finite; return them in float32. Raise UserError for NaN or
    infinity."""
    converted = {name: tensor.float() for name, tensor in tensors.items()}
    if name := next((name for name, tensor in converted.items() if not tensor.isfinite().all()), None):
        raise UserError(f"{path}: {name} has NaN or infinite values: download the file again.")
    return converted


def _check_shapes(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], path: Path
) -> dict[str, Tensor]:
    for name, shape in shapes.items():
        if name not in tensors:
            raise UserError(f"{path} has no {name}: the file and options.json are of different models.")
        if (actual := tuple(tensors[name].shape)) != shape:
            raise UserError(
                f"{path}: {name} has shape {actual}, but options and words need {shape}: they are of different models."
            )
    return _check_finite({name: tensors[name] for name in shapes}, path)


def _read_tokenizer(words: Path) -> Tokenizer:
    if words.is_dir():
        return load_tokenizer(words)
    lines = read_text_file(words, remedy="give a file with a word per line").removesuffix("\n").split("\n")
    return make_word_tokenizer(lines, str(words))


def _config_values(options: ElmoOptions, file: Path, words: int, run: Path) -> dict[str, Any]:
    """Return the config values of a run of an imported ELMo. Raise UserError if megaptm does not support it."""
    lstm, cnn, record = options.lstm, options.char_cnn, cast(ProjectedLSTMSpec, ELMO.first_block.layer)
    skips = ("lstm.use_skip_connections", lstm.use_skip_connections or lstm.n_layers == 1, (True,))
    for option, value, supported in (
        skips,
        ("lstm.cell_clip", lstm.cell_clip, (record.cell_clip,)),
        ("lstm.proj_clip", lstm.proj_clip, (record.projection_clip,)),
        ("char_cnn.activation", cnn.activation, ("relu",)),
        # 261 in training, where padding after a text has no id.
        ("char_cnn.n_characters", cnn.n_characters, (NUM_CHARACTERS, NUM_CHARACTERS - 1)),
        ("char_cnn.max_characters_per_token", cnn.max_characters_per_token, (MAX_WORD_LENGTH,)),
    ):
        if value not in supported:
            raise UserError(f"{file}: {option} is {value}, but must be {supported[0]}: the model cannot be imported.")
    size = Size(
        layers=lstm.n_layers,
        width=lstm.projection_dim,
        heads=1,
        ffn=lstm.dim,
        memory=1,
        inputs={
            "filters": tuple((characters, filters) for characters, filters in cnn.filters),
            "highway": cnn.n_highway,
            "character_width": cnn.embedding.dim,
        },
    )
    size_name = next((name for name, known in ELMO.sizes.items() if known == size), "custom")
    fields = ("layers", "width", "heads", "ffn", "memory")
    model = {"family": ELMO.name, "size": size_name, **{name: getattr(size, name) for name in fields}}
    model |= {**size.inputs, "filters": [[*pair] for pair in cnn.filters], "vocabulary": words}
    if ELMO.loss.negatives >= words:
        model["negatives"] = 0
    data = {"mix": {str(run / "corpus"): 1.0}, "sequence": ELMO.context}
    return {"run": str(run), "model": model, "data": data, **RECIPE, "optimizer": OPTIMIZER}

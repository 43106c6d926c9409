"""The Python interface, `import megaptm`: functions for what the commands do. Heavy modules are imported on first
use."""

from __future__ import annotations

import dataclasses
import operator
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megaptm.errors import EXIT_CONTINUE, UserError

if TYPE_CHECKING:
    import torch
    from webdataset import WebDataset

    from megaptm.data.dataset import MixDataset
    from megaptm.families.word_vectors.vectors import WordVectors
    from megaptm.inference.loaded_model import LoadedModel
    from megaptm.models.model import Model
    from megaptm.objectives import BaseObjective
    from megaptm.train.callbacks import Callback

PathLike = str | os.PathLike[str]


def load(folder: PathLike, *, step: int | None = None, device: str | torch.device | None = None) -> LoadedModel:
    """Load a trained model from the folder of a run or of an exported model (`megaptm export hf`): it can generate,
    fill, guess, encode and evaluate.

    `step` selects the checkpoint, by default the newest; `device` defaults to the GPU, if there is one. Raises
    UserError if the folder holds neither, or if the checkpoint is damaged.
    """
    from megaptm.inference.loaded_model import load_model

    if not isinstance(folder, (str, os.PathLike)):
        raise UserError(f"folder must be the folder of a run or of an exported model, not {folder!r}.")
    return load_model(Path(folder), step=step, device=_check_device(device))


def load_words(run: PathLike, *, step: int | None = None) -> WordVectors:
    """Load the word vectors of a run, which find similar words and answer analogies.

    `step` selects the checkpoint, by default the newest.
    """
    from megaptm.config import resolve_spec
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.spec import LayerlessFamily

    if not isinstance(run, (str, os.PathLike)):
        raise UserError(f"run must be the folder of a run, not {run!r}.")
    checkpoint = open_checkpoint(Path(run), step=step)
    family = resolve_spec(checkpoint.config).family
    if not isinstance(family, LayerlessFamily):
        raise UserError(
            f"{checkpoint.run} is a run of {family.name}, which has no word vectors: use `megaptm export hf` or "
            "`megaptm.load`."
        )
    vectors: WordVectors = family.load(checkpoint)
    return vectors


def allow_code(*modules: str) -> None:
    """Allow runs to name code in these modules.

    `load`, `load_words` and `pretrain` then import what the config in a run's folder names there. Allow only modules
    that you trust.
    """
    from megaptm.plugins import allow_code as allow

    allow(*modules)


def build_model(
    family: str, size: str = "custom", *, seed: int = 1234, device: str | torch.device | None = None, **changes: Any
) -> Model:
    """Build a new model, undivided, on one device (default: the CPU), with the initial weights of a run with this seed.

    `family` is a family of the catalogue (`megaptm families`) or your own, `package.module:NAME`. `changes` are further
    keys of a config's section `model`: `layers`, `width`, `heads`, `ffn`, `vocabulary`, `context`, `dropout` ...
    """
    from megaptm.config import read_model_spec
    from megaptm.models.initial import init_weights
    from megaptm.models.model import Model

    target = _check_device(device)
    model = Model(read_model_spec({"family": family, "size": size, **changes}, "megaptm.build_model"))
    init_weights(model, seed)
    return model.to(target)


def _check_device(device: str | torch.device | None) -> torch.device | None:
    """Return a device as `torch.device`, after a test that PyTorch can use it. None stays None."""
    import torch

    if device is None:
        return None
    try:
        torch_device = torch.device(device)
        torch.empty(0, device=torch_device)
    except (AssertionError, RuntimeError, TypeError, NotImplementedError):
        raise UserError(
            f"PyTorch finds no device ({device}) on this machine: use cpu, or cuda if there is a GPU."
        ) from None
    return torch_device


def open_dataset(
    corpora: PathLike | Mapping[Any, float],
    *,
    objective: str | Mapping[str, Any] | BaseObjective,
    sequence: int,
    split: str = "train",
    epochs: int = 1,
    seed: int = 1234,
    document_mask: bool | None = None,
    cache: PathLike | None = None,
) -> MixDataset:
    """Open corpora as a map-style PyTorch data set: the samples of a run, in the same order.

    `corpora` is a folder or a URL, or a mapping from several of them to weights. `objective` is a value of the config
    key or an `Objective`. `document_mask`: whether attention is kept within documents (default: yes, unless sequences
    continue those of earlier steps). `cache` is the folder for shards of corpora at URLs.
    """
    from megaptm.data import open_mix
    from megaptm.data.dataset import MixDataset
    from megaptm.data.shards import Corpus
    from megaptm.objectives import BaseObjective, build_objective
    from megaptm.run.corpora import load_corpus_tokenizer
    from megaptm.storage import RemoteFileCache

    sequence, epochs = _check_integer("sequence", sequence, minimum=4), _check_integer("epochs", epochs, minimum=1)
    seed = _check_integer("seed", seed, minimum=0)
    if document_mask is None:
        parsed_objective = objective if isinstance(objective, BaseObjective) else build_objective(objective)
        document_mask = parsed_objective.unit != "lane"
    if not isinstance(document_mask, bool):
        raise UserError(f"document_mask must be True or False, not {document_mask!r}.")
    weights = corpora if isinstance(corpora, Mapping) else {_corpus_location(corpora): 1.0}
    mix = {_corpus_location(location): weight for location, weight in weights.items()}
    if not mix:
        raise UserError("corpora is empty: name at least one corpus folder.")
    shard_cache = None if cache is None else RemoteFileCache(Path(cache))
    opened = open_mix(
        mix,
        split=split,
        objective=objective,
        sequence=sequence,
        seed=seed,
        document_mask=document_mask,
        special=load_corpus_tokenizer(Corpus.open(next(iter(mix)), shard_cache)).special,
        cache=shard_cache,
    )
    return MixDataset(opened, epochs=epochs)


def _corpus_location(corpus: Any) -> str:
    if not isinstance(corpus, (str, os.PathLike)):
        raise UserError(f"corpora must be a folder, a URL, or a mapping of them to weights, not {corpus!r}.")
    return os.fspath(corpus)


def _check_integer(name: str, value: Any, *, minimum: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise UserError(f"{name} must be an integer, not {value!r}.") from None
    if number < minimum:
        raise UserError(f"{name} ({number}) must be {minimum} or more.")
    return number


def open_webdataset(corpus: PathLike, *, split: str = "train", **options: Any) -> WebDataset:
    """Open a corpus's shards, which are plain tar files, as a pipeline of the `webdataset` library with one item per
    document.

    An item is a mapping: `tokens.npy` is the array of token ids, an annotation such as `words.npy` an array of
    positions, and `json` the metadata. `options` are passed to `webdataset.WebDataset`.
    """
    from megaptm.data.shards import Corpus
    from megaptm.storage import is_remote

    try:
        from webdataset import WebDataset
    except ImportError:
        raise UserError("open_webdataset needs webdataset: install it with `pip install 'megaptm[corpus]'`.") from None
    if is_remote(corpus):
        raise UserError(f"{corpus} is not a local folder: copy it to this machine, or use open_dataset.")
    if (opened := Corpus.open(corpus)).mirror:
        raise UserError(f"{corpus} has shards in other locations: pass their URLs to webdataset, or use open_dataset.")
    paths = [str(opened.folder / info.name) for info in opened.split(split).shards]
    return WebDataset(paths, **{"shardshuffle": False, **options}).decode()


def pretrain(
    config: PathLike | Mapping[str, Any],
    *,
    change: bool = False,
    callbacks: Sequence[str | type[Callback] | Callback] | Mapping[str, Any] = (),
    **overrides: Any,
) -> int:
    """Train a run, or continue it, as `megaptm train` does: the same processes, the same folder.

    `config` is a YAML file, the name of a config that comes with megaptm (`gpt2/tiny`), the folder of an existing run,
    or a mapping with the contents of such a file. `overrides` are keys that take precedence: `run="runs/mine"`,
    `train={"steps": 100}`. `change` accepts those that change the recipe of a begun run. `callbacks` are subclasses of
    `megaptm.Callback`: their names (`package.module:NAME`), classes, or instances of dataclasses. The processes of the
    run import them by name.

    Returns 0 if the run is complete, and 75 if a signal stopped it after saving: call again to continue. A mistake
    raises UserError (a ValueError), a failure RuntimeError, a second Ctrl-C KeyboardInterrupt.
    """
    from megaptm.config import format_override
    from megaptm.errors import EXIT_INTERRUPTED
    from megaptm.launch.local import train_locally as train_run

    if threading.current_thread() is not threading.main_thread():
        raise UserError("megaptm.pretrain handles signals, so it must be called on the main thread.")
    if not config:
        raise UserError("config is empty: name a YAML file, a config that comes with megaptm, or the folder of a run.")
    if callbacks:
        overrides["callbacks"] = dict(callbacks) if isinstance(callbacks, Mapping) else _name_callbacks(callbacks)
    source = config if isinstance(config, Mapping) else Path(config)
    code = train_run(source, [format_override(key, value) for key, value in overrides.items()], change=change)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    if code not in (0, EXIT_CONTINUE):
        raise RuntimeError(f"training failed with exit code {code}; see the messages above and the logs of the run.")
    return code


def _name_callbacks(callbacks: Sequence[str | type[Callback] | Callback]) -> dict[str, dict[str, Any]]:
    """Return the config's `callbacks` for names, classes and dataclasses: name -> options."""
    options: dict[str, dict[str, Any]] = {}
    for callback in callbacks:
        if isinstance(callback, str):
            options[callback] = {}
            continue
        kind = callback if isinstance(callback, type) else type(callback)
        name = f"{kind.__module__}:{kind.__qualname__}"
        if kind.__module__ == "__main__" or "." in kind.__qualname__:
            raise UserError(
                f"callbacks: the processes of the run cannot import {name}: move the class to the top of a module in a "
                "folder of PYTHONPATH."
            )
        options[name] = {}
        if isinstance(callback, type):
            continue
        if not dataclasses.is_dataclass(callback):
            raise UserError(
                f"callbacks: {name} must be a dataclass, so that its options can be passed on: decorate it."
            )
        for field in (field for field in dataclasses.fields(callback) if field.init):
            options[name][field.name] = getattr(callback, field.name)
    return options

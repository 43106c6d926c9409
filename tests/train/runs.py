"""Tiny corpora, and runs with a checkpoint of initial weights."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from rich.console import Console

from data_pipeline.annotate import Annotations
from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.config import Config, config_to_yaml, load_config, resolve_model
from megaptm.models.initial import init_weights
from megaptm.models.model import Model

CONFIGS = Path(__file__).parents[2] / "configs"
SHAPE = [
    "optimizer.max_warmup_ratio=null",
    "model.layers=2",
    "model.width=32",
    "model.heads=2",
    "model.ffn=64",
    "data.sequence=32",
    "layout.microbatch=2",
]
KINDS = {
    "gpt2": ("byte-bpe", 300),
    "transformer-xl-bytes": ("byte-bpe", 300),
    "bert": ("wordpiece", 150),
    "unilm": ("wordpiece", 150),
    "electra": ("wordpiece", 150),
    "ernie-2": ("wordpiece", 150),
    "t5": ("unigram", 150),
    "bart": ("byte-bpe", 300),
    "transformer": ("unigram", 150),
}
NOUNS = ["cat", "dog", "mat", "hat", "house", "river", "king", "queen", "garden", "letter", "window", "morning"]
VERBS = ["saw", "took", "found", "left", "kept", "lost", "met", "made"]


def write_text(folder: Path, *, documents: int = 40, seed: int = 0) -> Path:
    """Write short texts, one per file, in which some words are more frequent than others."""
    folder.mkdir(parents=True)
    draw = random.Random(seed)
    for number in range(documents):
        sentences = [
            f"The {draw.choices(NOUNS, range(1, 13))[0]} {draw.choice(VERBS)} the {draw.choice(NOUNS)} by the "
            f"{draw.choice(NOUNS)}."
            for _ in range(draw.randint(8, 24))
        ]
        (folder / f"{number:03d}.txt").write_text(" ".join(sentences) + "\n")
    return folder


SPECIALS = {"bart": "roberta", "transformer": "marian"}
"""Families whose special tokens are not the default of their tokenizer."""


def build(
    text: Path, out: Path, family: str, *, annotate: Annotations | None = None, tokenizer: Path | None = None
) -> Path:
    """Build a corpus for a family from a folder of text. `tokenizer`: that of another corpus."""
    (kind, vocabulary), specials = KINDS[family], SPECIALS.get(family)
    sentinels = 20 if kind == "unigram" and not specials else None
    own = TokenizerRecipe(kind=kind, vocabulary=vocabulary, specials=specials, sentinels=sentinels)
    own = own if tokenizer is None else TokenizerRecipe(folder=str(tokenizer))
    recipe = Recipe(
        sources=(Source(str(text)),),
        tokenizer=own,
        validation=0.2,
        annotate=annotate,
    )
    build_corpus(recipe, out, workers=0, console=Console(quiet=True))
    return out


def settings(family: str, run: Path, corpus: Path, *more: str) -> list[str]:
    """Return `megaptm train` arguments for the family's tiny model on a corpus."""
    vocabulary = f"model.vocabulary={KINDS[family][1]}"
    mix = f"data.mix={{{corpus}: 1}}"
    return [str(CONFIGS / family / "tiny.yaml"), f"run={run}", mix, vocabulary, "track.enabled=false", *SHAPE, *more]


def save_untrained(family: str, run: Path, corpus: Path, *more: str, step: int = 7) -> tuple[Path, Model]:
    """Write a run folder with one checkpoint of initial weights; return it with the model."""
    path, *overrides = settings(family, run, corpus, *more)
    model = save_initial(load_config(path, overrides), run, step=step)
    (run / "tokenizer").symlink_to(corpus / "tokenizer")
    return run, model


def save_initial(config: Config, run: Path, *, step: int = 7) -> Model:
    """Write a run without a tokenizer, with one checkpoint of initial weights; return the model."""
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(config))
    model = Model(resolve_model(config)).eval().requires_grad_(False)
    init_weights(model, seed=3)
    store = CheckpointStore(run, fence=lambda: True)
    store.prepare(step)
    pieces = [
        TensorPiece(f"weight/{name}", tuple(value.shape), (0,) * value.dim(), tuple(value.shape), value)
        for name, value in model.named_parameters()
    ]
    store.write(step, 0, pieces)
    store.commit(step, {}, ranks=1)
    return model


def sharpen(model: Model, factor: float = 30.0) -> None:
    """Scale weights until an untrained model prefers some predictions to others."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)

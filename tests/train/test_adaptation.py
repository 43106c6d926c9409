"""Runs that start from the weights of another kind of model."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from megaptm.checkpoint.store import CheckpointStore
from tests.bad_input.commands import user_error
from tests.drills.program import arguments
from tests.forked import megaptm
from tests.train.runs import write_text

ONE_STEP = ("train.steps=1", "optimizer.warmup_steps=0", "checkpoint.asynchronous=false", "layout.microbatch=12")


def build(folder: Path, kind: str, specials: str) -> Path:
    """Build a corpus whose tokenizer has these special tokens."""
    tokenizer = TokenizerRecipe(kind=kind, vocabulary=512, specials=specials)
    recipe = Recipe(sources=(Source(str(write_text(folder / "text"))),), tokenizer=tokenizer, validation=0.2)
    build_corpus(recipe, folder / "corpus", workers=0, console=Console(quiet=True))
    return folder / "corpus"


def weight(run: Path, name: str, step: int = 1) -> object:
    return CheckpointStore(run).load(step).reader.read(f"weight/{name}")


def test_a_decoder_continues_as_an_encoder_and_back(tmp_path: Path) -> None:
    """Ettin's models of the other objective (arXiv:2507.11412, section 4.4)."""
    corpus, still = build(tmp_path, "byte-bpe", "modernbert"), (*ONE_STEP, "optimizer.lr=1e-30")
    decoder, encoder, back = (tmp_path / name for name in ("decoder", "encoder", "back"))
    megaptm("train", *arguments("ettin-decoder", decoder, corpus, *ONE_STEP))
    change = ["model.family=ettin", "model.size=custom", "model.attention.window=16", "objective=masked-lm"]
    megaptm("train", f"run={encoder}", f"from={decoder}@1", "--weights-only", *change, *still)
    change = ["model.family=ettin-decoder", "model.attention.window=8", "objective=causal-lm"]
    megaptm("train", f"run={back}", f"from={encoder}@1", "--weights-only", *change, *still)
    turned, change = tmp_path / "turned", ["model.causal=false", "objective=masked-lm"]
    megaptm("train", f"run={turned}", f"from={decoder}@1", "--weights-only", *change, *still)
    assert (weight(turned, "head.mlm.norm.weight") == weight(decoder, "head.lm.norm.weight")).all()  # type: ignore[attr-defined]
    for name in ("{stack}.1.attention.qkv.weight", "embed.token.weight", "head.{head}.transform.weight"):
        first = weight(decoder, name.format(stack="decoder", head="lm"))
        for run, words in ((encoder, {"stack": "encoder", "head": "mlm"}), (back, {"stack": "decoder", "head": "lm"})):
            assert (weight(run, name.format(**words)) == first).all()  # type: ignore[attr-defined]


def test_both_sides_start_from_a_decoder(tmp_path: Path) -> None:
    corpus = build(tmp_path, "bpe", "t5gemma")
    decoder, both = tmp_path / "decoder", tmp_path / "both"
    shape = ("model.layers=2", "model.kv_heads=1", "model.attention.scale_width=16")
    megaptm("train", *arguments("gemma2", decoder, corpus, *shape, *ONE_STEP))
    start = f"train.init_from={decoder}"
    megaptm("train", *arguments("t5gemma", both, corpus, *shape, *ONE_STEP, "optimizer.lr=1e-30", start))
    for name in ("encoder.0.attention.kv.weight", "decoder.0.cross.kv.weight"):
        assert (weight(both, name) == weight(decoder, "decoder.0.attention.kv.weight")).all()  # type: ignore[attr-defined]
    message = user_error("train", *arguments("t5gemma", tmp_path / "wide", corpus, *shape, "model.width=64", start))
    assert "its width of the encoder is 32, the config's is 64" in message

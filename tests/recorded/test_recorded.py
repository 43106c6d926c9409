"""Losses, samples and shards equal a recorded table.

Refactoring changes none of these values. For an intended change, `python -m tests.recorded.test_recorded` writes the
table again, and the diff shows what changed. Shards and samples are compared byte by byte, losses to 2e-5, because
processors add in different orders. (Commit 53d4ce1 shortened the words of the text below, which changed all shards;
the package did not change.)
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megaptm.config import Layout
from megaptm.data import open_mix
from megaptm.data.manifest import MANIFEST, content_id
from megaptm.tokenizers import load_tokenizer
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, KINDS, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks

TABLE = Path(__file__).parent / "recorded.json"
LAYOUTS = {
    "one process": Layout(microbatch=2),
    "TP2+SP": Layout(microbatch=2, tensor=2, sequence_parallel=True),
    "PP2 interleaved": Layout(microbatch=2, pipeline=2, virtual=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
}
OBJECTIVES = {
    "byte-bpe": ("causal-lm",),
    "wordpiece": ("masked-lm", "masked-lm-whole-word", "masked-lm-next-sentence"),
    "unigram": ("span-corruption",),
}
WORDS = ("the", "of", "river", "stone", "walks", "under", "every", "bright", "morning", "and", "seven", "birds")


def text(number: int) -> str:
    """Return the sentences of a document, the same on every machine."""
    rng = np.random.Generator(np.random.PCG64(number))
    sentences = [rng.choice(WORDS, size=int(rng.integers(4, 18))) for _ in range(int(rng.integers(3, 12)))]
    return " ".join(" ".join(words).capitalize() + "." for words in sentences)


def build(folder: Path, kind: str) -> Path:
    """Build a corpus of 300 documents."""
    from rich.console import Console

    from data_pipeline import commands

    source = folder / "texts.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(json.dumps({"text": text(number)}) + "\n" for number in range(300)))
    out = folder / kind
    options = [f"out={out}", "workers=0", "validation=0.1", f"tokenizer.kind={kind}", "tokenizer.vocabulary=300"]
    commands.run_build_command(
        [str(source), *options, "annotate.sentences=true", "annotate.words=true"], console=Console(quiet=True)
    )
    # The order depends on the corpus id, and the id on `made_from`: the folder and the package versions.
    manifest = json.loads((out / MANIFEST).read_text()) | {"made_from": {}}
    manifest["id"] = content_id(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest))
    return out


def losses_by_family(layout: Layout) -> dict[tuple[str, float], list[float]]:
    """Return (family, dropout) -> losses of three steps. Runs in a rank."""
    return {(family, dropout): train_losses(family, layout, dropout) for family in KINDS for dropout in (0.0, 0.1)}


def train_losses(family: str, layout: Layout, dropout: float) -> list[float]:
    """Return the losses of three steps. Runs in a rank."""
    engine = filled_engine(tiny(family, dropout=dropout), layout, ADAM, losses=losses_of(family), seed=7)
    results = []
    for step in range(3):
        batches = micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        results.append(engine.train_step(batches, step=step, lr=ADAM.lr).loss)
    return results


def hash_samples(corpus: Path, objective: str) -> str:
    """Return a hash of samples of two epochs. Fields have the names of the time when the table was recorded."""
    special = load_tokenizer(corpus / "tokenizer").special
    mix = open_mix({str(corpus): 1.0}, objective=objective, sequence=48, seed=3, special=special)
    digest = hashlib.sha256()
    for number in (0, 1, 2, 3, mix.fresh_samples + 1):
        sample = {name.replace("document_ids", "documents"): array for name, array in mix.sample(number).items()}
        if "masked_positions" in sample:
            sample["asked"] = sample.pop("masked_positions")
        if "decoder_positions" in sample:  # added after the table was recorded
            del sample["positions"], sample["decoder_positions"]
        for name, array in sorted(sample.items()):
            digest.update(name.encode() + np.ascontiguousarray(array).astype("<i8").tobytes())
    return digest.hexdigest()


def record_losses() -> dict[str, Any]:
    losses_by_layout = {
        name: run_ranks(layout.processes, losses_by_family, layout)[0] for name, layout in LAYOUTS.items()
    }
    return {
        f"{family}, {name}, dropout {dropout}": losses_by_layout[name][family, dropout]
        for family in KINDS
        for name in LAYOUTS
        for dropout in (0.0, 0.1)
    }


def record_corpora(folder: Path) -> dict[str, Any]:
    corpora: dict[str, Any] = {}
    for kind, names in OBJECTIVES.items():
        corpus = build(folder, kind)
        splits = json.loads((corpus / MANIFEST).read_text())["splits"]
        corpora[f"shards, {kind}"] = {name: split["table_sha256"] for name, split in splits.items()}
        corpora |= {f"samples, {name}": hash_samples(corpus, name) for name in names}
    return corpora


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(TABLE.read_text())


def test_losses_equal_the_recorded_ones(recorded):
    results = record_losses()
    assert results.keys() == recorded["losses"].keys()
    for name, numbers in results.items():
        # Processors and versions of torch round differently.
        assert numbers == pytest.approx(recorded["losses"][name], rel=2e-5), name


def test_shards_and_samples_equal_the_recorded_ones(recorded, tmp_path):
    assert record_corpora(tmp_path) == recorded["corpora"]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        table = {"losses": record_losses(), "corpora": record_corpora(Path(folder))}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")

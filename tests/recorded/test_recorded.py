"""What was trained and built stays what it was: losses, samples and shards beside a recorded table.

A rebuilding of the code changes none of these numbers. Where one is meant to change,
`python -m tests.recorded.test_recorded` writes the table anew, and the diff says what changed. Shards and samples are
compared byte by byte, losses to 2e-5: another processor adds in another order. (Commit 53d4ce1 shortened the words of
the text below, and so wrote all shards anew; no code of the package changed with it.)
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
from megaptm.tokenizers import load
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
    """A document of some sentences, the same everywhere."""
    draw = np.random.Generator(np.random.PCG64(number))
    sentences = [draw.choice(WORDS, size=int(draw.integers(4, 18))) for _ in range(int(draw.integers(3, 12)))]
    return " ".join(" ".join(words).capitalize() + "." for words in sentences)


def build(folder: Path, kind: str) -> Path:
    """A corpus of 300 documents."""
    from rich.console import Console

    from data_pipeline import commands

    source = folder / "texts.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(json.dumps({"text": text(number)}) + "\n" for number in range(300)))
    out = folder / kind
    options = [f"out={out}", "workers=0", "validation=0.1", f"tokenizer.kind={kind}", "tokenizer.vocabulary=300"]
    commands.build(
        [str(source), *options, "annotate.sentences=true", "annotate.words=true"], console=Console(quiet=True)
    )
    # Orders follow from the id of a corpus, and that from the folder and the releases that it was made with.
    manifest = json.loads((out / MANIFEST).read_text()) | {"made_from": {}}
    manifest["id"] = content_id(manifest)
    (out / MANIFEST).write_text(json.dumps(manifest))
    return out


def losses_of_each(layout: Layout) -> dict[tuple[str, float], list[float]]:
    """Family and dropout -> losses of three steps, on a rank."""
    return {(family, dropout): losses(family, layout, dropout) for family in KINDS for dropout in (0.0, 0.1)}


def losses(family: str, layout: Layout, dropout: float) -> list[float]:
    """Of three steps, on a rank."""
    engine = filled_engine(tiny(family, dropout=dropout), layout, ADAM, losses=losses_of(family), seed=7)
    found = []
    for step in range(3):
        batches = micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        found.append(engine.train_step(batches, step=step, lr=ADAM.lr).loss)
    return found


def samples(corpus: Path, objective: str) -> str:
    """A hash of a few samples, of two epochs, with every field and the name it had when the table was recorded."""
    special = load(corpus / "tokenizer").special
    mix = open_mix({str(corpus): 1.0}, objective=objective, sequence=48, seed=3, special=special)
    digest = hashlib.sha256()
    for number in (0, 1, 2, 3, mix.fresh_samples + 1):
        sample = {name.replace("document_ids", "documents"): array for name, array in mix.sample(number).items()}
        if "masked_positions" in sample:
            sample["asked"] = sample.pop("masked_positions")
        if "decoder_positions" in sample:  # the table is older than positions of two streams
            del sample["positions"], sample["decoder_positions"]
        for name, array in sorted(sample.items()):
            digest.update(name.encode() + np.ascontiguousarray(array).astype("<i8").tobytes())
    return digest.hexdigest()


def record_losses() -> dict[str, Any]:
    found = {name: run_ranks(layout.processes, losses_of_each, layout)[0] for name, layout in LAYOUTS.items()}
    return {
        f"{family}, {name}, dropout {dropout}": found[name][family, dropout]
        for family in KINDS
        for name in LAYOUTS
        for dropout in (0.0, 0.1)
    }


def record_corpora(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, names in OBJECTIVES.items():
        corpus = build(folder, kind)
        splits = json.loads((corpus / MANIFEST).read_text())["splits"]
        found[f"shards, {kind}"] = {name: split["table_sha256"] for name, split in splits.items()}
        found |= {f"samples, {name}": samples(corpus, name) for name in names}
    return found


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(TABLE.read_text())


def test_losses_are_the_recorded_ones(recorded):
    found = record_losses()
    assert found.keys() == recorded["losses"].keys()
    for name, numbers in found.items():
        # Another processor, or another release of torch, rounds otherwise.
        assert numbers == pytest.approx(recorded["losses"][name], rel=2e-5), name


def test_shards_and_samples_are_the_recorded_ones(recorded, tmp_path):
    assert record_corpora(tmp_path) == recorded["corpora"]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        table = {"losses": record_losses(), "corpora": record_corpora(Path(made))}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")

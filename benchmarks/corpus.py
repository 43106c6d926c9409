"""Text to shards: megaptm compared with datatrove, and with a tokenizer called once per document.

    python benchmarks/corpus.py [--mb 100] [--only tokenize|kinds|whole] [--peers FOLDER] [--work FOLDER]

All read the same JSON lines files (`common/text.py`) with the same tokenizer in two processes on the same cores. The
start of Ray, and of the peers' interpreters, is not counted. `tokenize`: byte-level BPE. On a fifth of the text:
`kinds`: WordPiece and Unigram; `whole`: the rules of Gopher and of C4, near-duplicates, tokens.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.environments import CACHE, python_of, run_peer
from common.options import Options
from common.text import make_text, read_texts
from rich.console import Console

WORKERS = 2
TRAINING_TEXTS = {"byte-bpe": 8000, "wordpiece": 8000, "unigram": 1500}
NO_STEPS: dict[str, Any] = {"steps": [], "deduplicate": {"documents": False, "near": None}}
WHOLE: dict[str, Any] = {
    # With the thresholds of datatrove.
    "steps": ["gopher-repetition", "gopher-quality", {"c4-quality": {"min_sentences": 5, "min_words_per_line": 3}}],
    "deduplicate": {"documents": True, "near": {}},
}


@dataclass(frozen=True)
class Input:
    """Text, and a tokenizer for it."""

    files: list[Path]
    tokenizer: Path
    scratch: Path
    """For the output."""

    @property
    def megabytes(self) -> float:
        return sum(file.stat().st_size for file in self.files) / 1e6

    def arguments(self) -> dict[str, Any]:
        out = tempfile.mkdtemp(dir=self.scratch)
        return {
            "files": [str(file) for file in self.files],
            "out": out,
            "tokenizer": str(self.tokenizer / "tokenizer.json"),
            "workers": WORKERS,
        }


def ours(given: Input, recipe: dict[str, Any], rounds: int = 1) -> dict[str, Any]:
    """The median of several builds; the workers are started before the first."""
    from data_pipeline.corpus.workers import open_workers

    with open_workers(WORKERS, 0):
        _build(dataclasses.replace(given, files=[_beginning(given)]), recipe)  # workers import
        done = sorted((_build(given, recipe) for _ in range(rounds)), key=lambda result: result["seconds"])
    return done[rounds // 2]


def _beginning(given: Input) -> Path:
    """Several parts of text, so that each worker has one."""
    beginning = Path(tempfile.mkdtemp(dir=given.scratch), "beginning.jsonl")
    with given.files[0].open() as lines:
        beginning.write_text("".join(itertools.islice(lines, 4000)))
    return beginning


def _build(given: Input, recipe: dict[str, Any]) -> dict[str, Any]:
    from data_pipeline.corpus.build import build_corpus
    from data_pipeline.recipe import read_recipe
    from megaptm.data.shards import read_manifest

    out = Path(tempfile.mkdtemp(dir=given.scratch))
    files = [str(file) for file in given.files]
    plain = {"annotate": {"sentences": False}, "validation": 0}  # no peer splits sentences
    content = {**recipe, **plain, "sources": files, "tokenizer": str(given.tokenizer)}
    (out / "recipe.yaml").write_text(json.dumps(content))  # JSON is YAML
    ready = read_recipe([str(out / "recipe.yaml")])
    begun = time.perf_counter()
    report = build_corpus(ready, out / "corpus", workers=WORKERS, console=Console(file=io.StringIO()))
    seconds = time.perf_counter() - begun
    train = read_manifest(out / "corpus").splits["train"]
    return {"seconds": seconds, "tokens": train.tokens, "documents": train.samples, "stages": report.seconds}


def tokenizer_of(kind: str, vocabulary: int, files: list[Path], folder: Path) -> Path:
    """Trained once, on the first texts."""
    from megaptm.tokenizers import train

    place = folder / f"{kind}-{vocabulary}"
    if not place.is_dir():
        texts = itertools.islice(read_texts(files), TRAINING_TEXTS[kind])
        train(kind, texts, vocabulary=vocabulary).save(place)
    return place


def cat_seconds(files: list[Path]) -> float:
    """The second read, from the page cache, as for all others."""
    for _ in range(2):
        begun = time.perf_counter()
        subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def row(name: str, megabytes: float, result: dict[str, Any]) -> None:
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in result.get("stages", {}).items() if seconds > 0.5)
    counts = "".join(f"{result[count]:>14,}" if count in result else " " * 14 for count in ("documents", "tokens"))
    print(
        f"{name:<36}{megabytes / result['seconds']:>9.1f} MB/s{result['seconds']:>9.1f} s{counts}  {stages}", flush=True
    )


def metric(name: str, ours: dict[str, Any], theirs: dict[str, Any], goal: float) -> str:
    return f"METRIC {name} {theirs['seconds'] / ours['seconds']:.2f} ratio goal >={goal}"


def tokenize(given: Input, datatrove: str | None, rounds: int) -> list[str]:
    row("cat", given.megabytes, {"seconds": cat_seconds(given.files)})
    alone = {**given.arguments(), "folder": str(given.tokenizer)}
    row("our tokenizer alone", given.megabytes, run_peer(sys.executable, "tokenizer_alone", **alone))
    mine = ours(given, NO_STEPS, rounds)
    row("megaptm", given.megabytes, mine)
    document = run_peer(sys.executable, "per_document", **given.arguments())
    row("one encode a document", given.megabytes, document)
    metrics = [metric("corpus_tokenize_over_per_document", mine, document, 10)]
    if datatrove:
        theirs = run_peer(datatrove, "datatrove_tokenize", **given.arguments() | {"files": str(given.files[0].parent)})
        row("datatrove", given.megabytes, theirs)
        metrics.append(metric("corpus_tokenize_over_datatrove", mine, theirs, 10))
    return metrics


def kind(name: str, given: Input) -> list[str]:
    alone = {**given.arguments(), "folder": str(given.tokenizer)}
    row(f"{name}: our tokenizer alone", given.megabytes, run_peer(sys.executable, "tokenizer_alone", **alone))
    mine = ours(given, NO_STEPS)
    row(f"{name}: megaptm", given.megabytes, mine)
    document = run_peer(sys.executable, "per_document", **given.arguments())
    row(f"{name}: one encode a document", given.megabytes, document)
    return [metric(f"corpus_{name}_over_per_document", mine, document, 1.5)]


def whole(given: Input, datatrove: str | None) -> list[str]:
    mine = ours(given, WHOLE)
    row("whole: megaptm", given.megabytes, mine)
    if not datatrove:
        return []
    theirs = run_peer(datatrove, "datatrove_whole", **given.arguments() | {"files": str(given.files[0].parent)})
    row("whole: datatrove", given.megabytes, theirs)
    return [metric("corpus_whole_over_datatrove", mine, theirs, 2)]


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--mb", default=100, short=5)
    arguments.add("--vocabulary", default=32_000, short=2_000)
    arguments.add("--rounds", default=3, short=1)
    arguments.add_argument("--only", choices=("tokenize", "kinds", "whole"))
    arguments.add_argument("--peers", type=Path, default=CACHE / "peers")
    arguments.add_argument("--work", type=Path, default=CACHE, help="where text and tokenizers are made and kept")
    options = arguments.read()

    datatrove = None if options.only == "kinds" or options.short else python_of("datatrove", options.peers)
    sizes = (options.mb, max(5, options.mb // 5))
    texts, fifth = (make_text(options.work, megabytes, short=options.short) for megabytes in sizes)
    metrics = []
    for part in [options.only] if options.only else ("tokenize", "kinds", "whole"):
        for name in ("wordpiece", "unigram") if part == "kinds" else ("byte-bpe",):
            tokenizer = tokenizer_of(name, options.vocabulary, texts, options.work)
            with tempfile.TemporaryDirectory() as scratch:
                given = Input(texts if part == "tokenize" else fifth, tokenizer, Path(scratch))
                if part == "kinds":
                    metrics += kind(name, given)
                elif part == "tokenize":
                    metrics += tokenize(given, datatrove, options.rounds)
                else:
                    metrics += whole(given, datatrove)
    print("\n".join(metrics))


if __name__ == "__main__":
    main()

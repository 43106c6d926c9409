"""Text to shards: megaptm compared with datatrove, and with a tokenizer called once per document.

    python benchmarks/corpus.py [--mb 100] [--only tokenize|kinds|pipeline] [--peers FOLDER] [--work FOLDER]

All read the same JSON Lines files (`common/text.py`) with the same tokenizer in two processes on the same cores. The
start of Ray, and of the peers' interpreters, is not counted.

- `tokenize`: byte-level BPE
- `kinds`, on a fifth of the text: WordPiece and Unigram
- `pipeline`, on a fifth of the text: the rules of Gopher and C4, near deduplication, tokenization
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

from common.environments import CACHE, find_python, run_peer
from common.options import Options
from common.text import make_text, read_texts
from rich.console import Console

WORKERS = 2
TRAINING_TEXTS = {"byte-bpe": 8000, "wordpiece": 8000, "unigram": 1500}
NO_STEPS: dict[str, Any] = {"steps": [], "deduplicate": {"documents": False, "near": None}}
PIPELINE: dict[str, Any] = {
    # With the thresholds of datatrove.
    "steps": ["gopher-repetition", "gopher-quality", {"c4-quality": {"min_sentences": 5, "min_words_per_line": 3}}],
    "deduplicate": {"documents": True, "near": {}},
}


@dataclass(frozen=True)
class Input:
    """Text, a tokenizer for it, and a folder for the output."""

    files: list[Path]
    tokenizer: Path
    scratch: Path

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


def build_median(source: Input, recipe: dict[str, Any], rounds: int = 1) -> dict[str, Any]:
    """Return the result of the median build. The workers are started before the first."""
    from data_pipeline.corpus.workers import open_workers

    with open_workers(WORKERS, 0):
        _build(dataclasses.replace(source, files=[_write_first_documents(source)]), recipe)  # workers import modules
        results = sorted((_build(source, recipe) for _ in range(rounds)), key=lambda result: result["seconds"])
    return results[rounds // 2]


def _write_first_documents(source: Input) -> Path:
    """Write enough text that each worker has a part."""
    file = Path(tempfile.mkdtemp(dir=source.scratch), "first.jsonl")
    with source.files[0].open() as lines:
        file.write_text("".join(itertools.islice(lines, 4000)))
    return file


def _build(source: Input, recipe: dict[str, Any]) -> dict[str, Any]:
    from data_pipeline.corpus.build import build_corpus
    from data_pipeline.recipe import read_recipe
    from megaptm.data.shards import read_manifest

    out = Path(tempfile.mkdtemp(dir=source.scratch))
    files = [str(file) for file in source.files]
    common = {"annotate": {"sentences": False}, "validation": 0}  # no peer splits sentences
    content = {**recipe, **common, "sources": files, "tokenizer": str(source.tokenizer)}
    (out / "recipe.yaml").write_text(json.dumps(content))  # JSON is YAML
    parsed = read_recipe([str(out / "recipe.yaml")])
    start = time.perf_counter()
    report = build_corpus(parsed, out / "corpus", workers=WORKERS, console=Console(file=io.StringIO()))
    seconds = time.perf_counter() - start
    train = read_manifest(out / "corpus").splits["train"]
    return {"seconds": seconds, "tokens": train.tokens, "documents": train.samples, "stages": report.seconds}


def make_tokenizer(kind: str, vocabulary: int, files: list[Path], folder: Path) -> Path:
    """Return the folder of a tokenizer, trained on the first texts if it is missing."""
    from megaptm.tokenizers import train_tokenizer_on_texts

    path = folder / f"{kind}-{vocabulary}"
    if not path.is_dir():
        texts = itertools.islice(read_texts(files), TRAINING_TEXTS[kind])
        train_tokenizer_on_texts(kind, texts, vocabulary=vocabulary).save(path)
    return path


def measure_cat(files: list[Path]) -> float:
    """Return the seconds of the second read, which is from the page cache as for all contenders."""
    for _ in range(2):
        start = time.perf_counter()
        subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def print_row(name: str, megabytes: float, result: dict[str, Any]) -> None:
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in result.get("stages", {}).items() if seconds > 0.5)
    counts = "".join(f"{result[count]:>14,}" if count in result else " " * 14 for count in ("documents", "tokens"))
    print(
        f"{name:<36}{megabytes / result['seconds']:>9.1f} MB/s{result['seconds']:>9.1f} s{counts}  {stages}", flush=True
    )


def format_metric(name: str, megaptm: dict[str, Any], peer: dict[str, Any], goal: float) -> str:
    return f"METRIC {name} {peer['seconds'] / megaptm['seconds']:.2f} ratio goal >={goal}"


def measure_tokenizer(source: Input) -> dict[str, Any]:
    """Measure megaptm's tokenizer from memory to memory, without a corpus."""
    return run_peer(sys.executable, "tokenizer_alone", **source.arguments(), folder=str(source.tokenizer))


def compare_tokenization(source: Input, datatrove: str | None, rounds: int) -> list[str]:
    print_row("cat", source.megabytes, {"seconds": measure_cat(source.files)})
    print_row("megaptm's tokenizer only", source.megabytes, measure_tokenizer(source))
    megaptm = build_median(source, NO_STEPS, rounds)
    print_row("megaptm", source.megabytes, megaptm)
    per_document = run_peer(sys.executable, "per_document", **source.arguments())
    print_row("one call per document", source.megabytes, per_document)
    metrics = [format_metric("corpus_tokenize_over_per_document", megaptm, per_document, 10)]
    if datatrove:
        files = {"files": str(source.files[0].parent)}
        peer = run_peer(datatrove, "datatrove_tokenize", **source.arguments() | files)
        print_row("datatrove", source.megabytes, peer)
        metrics.append(format_metric("corpus_tokenize_over_datatrove", megaptm, peer, 10))
    return metrics


def compare_kind(name: str, source: Input) -> list[str]:
    print_row(f"{name}: megaptm's tokenizer only", source.megabytes, measure_tokenizer(source))
    megaptm = build_median(source, NO_STEPS)
    print_row(f"{name}: megaptm", source.megabytes, megaptm)
    per_document = run_peer(sys.executable, "per_document", **source.arguments())
    print_row(f"{name}: one call per document", source.megabytes, per_document)
    return [format_metric(f"corpus_{name}_over_per_document", megaptm, per_document, 1.5)]


def compare_pipeline(source: Input, datatrove: str | None) -> list[str]:
    megaptm = build_median(source, PIPELINE)
    print_row("pipeline: megaptm", source.megabytes, megaptm)
    if not datatrove:
        return []
    peer = run_peer(datatrove, "datatrove_pipeline", **source.arguments() | {"files": str(source.files[0].parent)})
    print_row("pipeline: datatrove", source.megabytes, peer)
    return [format_metric("corpus_whole_over_datatrove", megaptm, peer, 2)]


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--mb", default=100, short=5)
    arguments.add("--vocabulary", default=32_000, short=2_000)
    arguments.add("--rounds", default=3, short=1)
    arguments.add_argument("--only", choices=("tokenize", "kinds", "pipeline"))
    arguments.add_argument("--peers", type=Path, default=CACHE / "peers", help="folder of the peers' environments")
    arguments.add_argument("--work", type=Path, default=CACHE, help="folder in which text and tokenizers are cached")
    options = arguments.read()

    datatrove = None if options.only == "kinds" or options.short else find_python("datatrove", options.peers)
    sizes = (options.mb, max(5, options.mb // 5))
    texts, fifth = (make_text(options.work, megabytes, short=options.short) for megabytes in sizes)
    metrics = []
    for part in [options.only] if options.only else ("tokenize", "kinds", "pipeline"):
        for name in ("wordpiece", "unigram") if part == "kinds" else ("byte-bpe",):
            tokenizer = make_tokenizer(name, options.vocabulary, texts, options.work)
            with tempfile.TemporaryDirectory() as scratch:
                source = Input(texts if part == "tokenize" else fifth, tokenizer, Path(scratch))
                if part == "kinds":
                    metrics += compare_kind(name, source)
                elif part == "tokenize":
                    metrics += compare_tokenization(source, datatrove, options.rounds)
                else:
                    metrics += compare_pipeline(source, datatrove)
    print("\n".join(metrics))


if __name__ == "__main__":
    main()

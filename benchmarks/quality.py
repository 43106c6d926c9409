"""Quality scores, languages and cluster sizes beside datatrove, with the same models on the same documents.

    python benchmarks/quality.py [--mb 20] [--lid lid.176.ftz] [--peers FOLDER] [--work FOLDER]

- `score`: a supervised model of fastText, trained here on prose and code, drops documents whose label `prose` has a
  probability below 0.5. datatrove: `FastTextClassifierFilter`.
- `language`, with `--lid`: English with a probability of at least 0.65 by fastText's 176 languages, from the first
  2,000 characters. datatrove: `LanguageFilter`, on texts that are cut beforehand.
- `own score`: the classifier of `megaptm corpus train-quality`, trained on the same documents.
- `clusters`: sizes of the clusters of near duplicates. datatrove: four stages of MinHash with cluster sizes.

All run on one core. Speeds are per second of CPU time, without the start of interpreters and the loading of models. The
documents that both keep are compared one by one.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common.environments import CACHE, find_python, run_peer
from common.options import Options
from common.text import make_text

from data_pipeline.clean import run_steps
from data_pipeline.clean.language import CLASSIFIED_CHARACTERS, KeepLanguage, identify_language
from data_pipeline.clean.quality import ScoreQuality
from data_pipeline.clean.step import CleaningStep
from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions, find_duplicates, write_part
from data_pipeline.document import Document, DropCounts

LABEL = "prose"
THRESHOLDS = {"score": 0.5, "language": 0.65}
TRAINING_DOCUMENTS = 2_000


def read_documents(files: list[Path]) -> list[Document]:
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [Document(json.loads(line)["text"], str(number)) for number, line in enumerate(lines)]


def is_prose(text: str) -> bool:
    """Whether most lines start with a letter and few characters are brackets: a rule that a model can learn."""
    return sum(map(text.count, "(){}[]=_")) < 0.02 * len(text)


def train_fasttext(documents: list[Document], folder: Path) -> Path:
    """Train a supervised model of fastText on words and pairs of words."""
    import fasttext

    lines = (
        f"__label__{LABEL if is_prose(document.text) else 'code'} {' '.join(document.text.split())}"
        for document in documents
    )
    (folder / "train.txt").write_text("\n".join(lines), encoding="utf-8")
    model = fasttext.train_supervised(str(folder / "train.txt"), dim=16, epoch=25, wordNgrams=2, thread=1, verbose=0)
    model.save_model(str(folder / "quality.bin"))
    return folder / "quality.bin"


def train_own(documents: list[Document], folder: Path) -> Path:
    """Train the classifier of this project on the same documents."""
    from data_pipeline.train_quality import TrainingOptions, train_classifier

    for kind in (True, False):
        rows = [json.dumps({"text": document.text}) for document in documents if is_prose(document.text) is kind]
        (folder / f"{kind}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    classifier = train_classifier([f"{folder}/True.jsonl"], [f"{folder}/False.jsonl"], TrainingOptions())
    classifier.save(str(folder / "own.quality"))
    return folder / "own.quality"


def measure_step(step: CleaningStep, documents: list[Document]) -> dict[str, Any]:
    list(step(documents[:1], DropCounts()))  # models are loaded before the measurement
    start = time.process_time()
    retained = list(run_steps([step], documents, DropCounts()))
    return {"seconds": time.process_time() - start, "retained": [int(document.source) for document in retained]}


def measure_clusters(documents: list[Document], folder: Path) -> dict[str, Any]:
    options = Deduplicate(documents=False, near=NearDuplicateOptions(threshold=0.8), cluster_sizes=True)
    start = time.process_time()
    stem = str(folder / "part")
    count = write_part(stem, documents, options)
    part = type("Part", (), {"stem": stem, "documents": count})()
    duplicates = find_duplicates([part], options, lambda name, function, jobs: [*map(function, jobs)], str(folder))
    assert duplicates.clusters is not None
    sizes = duplicates.clusters[duplicates.reasons == 0]
    return {"seconds": time.process_time() - start, "sizes": np.bincount(sizes).tolist()}


def print_row(name: str, megabytes: float, result: dict[str, Any]) -> None:
    count = f"{len(result['retained']):,} documents" if "retained" in result else ""
    print(f"{name:<32}{megabytes / result['seconds']:>9.2f} MB/s  {count}", flush=True)


def compare_decisions(own: dict[str, Any], peer: dict[str, Any], total: int) -> str:
    different = {*own["retained"]} ^ {*peer["retained"]}
    return f"{1 - len(different) / total:.2%} of {total:,} decisions are equal"


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--mb", default=20, short=2)
    arguments.add_argument("--lid", type=Path, help="model of fastText for languages")
    arguments.add_argument("--peers", type=Path, default=CACHE / "peers", help="folder of the peers' environments")
    arguments.add_argument("--work", type=Path, default=CACHE, help="folder in which text is cached")
    options = arguments.read()
    datatrove = None if options.short else find_python("datatrove", options.peers)
    files = make_text(options.work, options.mb, short=options.short)
    documents = read_documents(files)
    megabytes = sum(len(document.text.encode()) for document in documents) / 1e6
    print(f"{len(documents):,} documents, {megabytes:.0f} MB of text")
    metrics: list[str] = []

    def compare(name: str, own: dict[str, Any], show: Callable[[dict[str, Any]], str], **settings: Any) -> None:
        print_row(f"{name}: megaptm", megabytes, own)
        if datatrove is None:
            return
        peer = run_peer(datatrove, "datatrove_quality", kind=name, files=str(files[0].parent), **settings)
        print_row(f"{name}: datatrove", megabytes, peer)
        print(f"  {show(peer)}")
        metrics.append(f"METRIC quality_{name}_over_datatrove {peer['seconds'] / own['seconds']:.2f} ratio goal >=1")

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = train_fasttext(documents[:TRAINING_DOCUMENTS], folder)
        own = measure_step(ScoreQuality(str(model), LABEL, THRESHOLDS["score"]), documents)
        compare(
            "score",
            own,
            lambda peer: compare_decisions(own, peer, len(documents)),
            model=str(model),
            label=LABEL,
            threshold=THRESHOLDS["score"],
        )
        linear = measure_step(
            ScoreQuality(str(train_own(documents[:TRAINING_DOCUMENTS], folder)), min_score=0.5), documents
        )
        print_row("own score: megaptm", megabytes, linear)
        truth = {"retained": [int(document.source) for document in documents if is_prose(document.text)]}
        print(f"  {compare_decisions(linear, truth, len(documents))} with the rule that made the examples")
        print(f"  of fastText's {compare_decisions(own, truth, len(documents))}")
        metrics.append(f"METRIC quality_own_score_mb_s {megabytes / linear['seconds']:.0f} MB/s goal >=10")
        if options.lid:
            keep = KeepLanguage(("en",), THRESHOLDS["language"], model=str(options.lid))
            identify_language("text", str(options.lid))
            language = measure_step(keep, documents)
            compare(
                "language",
                language,
                lambda peer: compare_decisions(language, peer, len(documents)),
                model=str(options.lid),
                threshold=THRESHOLDS["language"],
                characters=CLASSIFIED_CHARACTERS,
            )
        clusters = measure_clusters(documents, folder)
        print(f"  clusters by size: {clusters['sizes'][1:]}")
        compare("clusters", clusters, lambda peer: f"clusters by size: {peer['sizes'][1:]}", out=scratch)
    print("\n".join(metrics))


if __name__ == "__main__":
    main()

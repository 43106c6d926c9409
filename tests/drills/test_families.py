"""Every family's tiny config trains on two tensor ranks, is stopped, and goes on on two pipeline stages."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from data_pipeline import commands
from data_pipeline.annotate.similar import write_similar_words
from megaptm.config import load as load_config
from megaptm.families import CATALOGUE
from megaptm.objectives import OBJECTIVES
from megaptm.tokenizers import load
from tests import ROOT
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

STEPS, STOP = 30, 15
SHORT = ("gpt2", "electra")
"""In every run of the tests: a decoder, and the one whose stacks need each other. The others are for the drills."""
UNITS = {"tokens": {0: 2, 5: 0}, "words": {0: 0, 5: 2, 20: 0}, "entities": {0: 0, 20: 2}}
"""ERNIE 1.0's stages: the second begins before the run is stopped, the third behind it."""
NAMES = ("email", "header", "message", "charset", "policy")
"""Entities in these texts."""
DIALOGUES, LEAST = 300, 20
"""How many, and of how long lines."""
CASES = [name if name in SHORT else pytest.param(name, marks=pytest.mark.drill) for name in CATALOGUE]


@pytest.fixture(scope="session")
def corpus_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Family -> a corpus of its tokenizer, with all that is known of places in texts."""
    folders: dict[tuple[str, str | None], Path] = {}

    def build(family: str) -> Path:
        table = CATALOGUE[family]
        key = (table.tokenizer, table.specials)
        # A table that learns from pairs has special tokens of its own, so no other shares its corpus.
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("family") / "corpus"
            specials = [] if table.specials is None else [f"tokenizer.specials={table.specials}"]
            commands.build(
                [
                    *sources(family, folders[key].parent),
                    *(f"out={folders[key]}", "workers=0", "validation=0.1", "limit_bytes=400000"),
                    *(f"tokenizer.kind={table.tokenizer}", "tokenizer.vocabulary=512", *specials),
                    *("annotate.sentences=true", "annotate.words=true", "annotate.capitals=true"),
                    f"annotate.tags={tags(folders[key].parent)}",
                ],
                console=Console(quiet=True),
            )
        return folders[key]

    return build


def sources(family: str, folder: Path) -> list[str]:
    """Text; or, for a family that reads texts in parts, lines and the same in capitals."""
    stdlib = Path(sysconfig.get_path("stdlib")) / "email"
    if "parts" not in OBJECTIVES[CATALOGUE[family].objectives[0]].annotations:
        return [str(stdlib)]
    lines = [line.strip() for path in sorted(stdlib.glob("*.py")) for line in path.read_text().splitlines()]
    for name, written in (("lines.en", lines), ("lines.up", [line.upper() for line in lines])):
        (folder / name).write_text("\n".join(written))
    return [str(ROOT / "configs/corpora/pairs.yaml"), f"sources=[{{path: {folder}/lines.en, aligned: .up}}]"]


def tags(folder: Path) -> Path:
    """A file of entities, each with its kind."""
    (folder / "tags.tsv").write_text("".join(f"name\t{name}\n" for name in NAMES))
    return folder / "tags.tsv"


def stages_and_dialogues(corpus: Path) -> list[str]:
    """The objective of ERNIE 1.0, and its mix: what is hidden in texts changes twice, and dialogues stand beside it."""
    talks, texts = corpus.parent / "talks", Path(sysconfig.get_path("stdlib")) / "email"
    turns = [line.strip() for path in sorted(texts.glob("*.py")) for line in path.read_text().splitlines()]
    turns = [turn for turn in turns if len(turn) > LEAST]
    records = [
        {"messages": [{"role": "asker", "content": question}, {"role": "teller", "content": answer}]}
        for question, answer in zip(turns[::2], turns[1::2], strict=False)
    ]
    (corpus.parent / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records[:DIALOGUES]))
    commands.build(
        [
            str(ROOT / "configs/corpora/dialogue.yaml"),
            f"sources=[{{path: {corpus.parent}/talks.jsonl, messages: messages}}]",
            *(f"out={talks}", "workers=0", "validation=0.1", f"tokenizer={corpus}/tokenizer"),
        ],
        console=Console(quiet=True),
    )
    one = {"task": "masked-lm", "hide": "independent"}
    stages = {
        f"hidden-{units}": {
            **one,
            "units": units,
            "question": "next-sentence",
            "corpora": [str(corpus)],
            "share": share,
        }
        for units, share in UNITS.items()
    }
    dialogues = {"dialogues": {**one, "units": "tokens", "question": "dialogue", "corpora": [str(talks)], "share": 1}}
    return [f"data.mix={{{corpus}: 1, {talks}: 1}}", f"objective={json.dumps(stages | dialogues)}"]


def similar_words(corpus: Path) -> list[str]:
    """The objective of MacBERT, with a table of a few words of these texts."""
    words = ["message", "header", "string", "value", "name", "part", "line", "text", "self", "return"]
    table = corpus.parent / "similar.npz"
    write_similar_words({word: {*words} - {word} for word in words}, load(corpus / "tokenizer"), table)
    masks = {"hide": "ngrams", "length_weights": [0.4, 0.3, 0.2, 0.1], "show": "similar-words", "similar": str(table)}
    return [f"objective={json.dumps({'masked-lm': masks, 'sentence-order': {}})}"]


def changed(family: str, corpus: Path) -> list[str]:
    """What a tiny config needs beside its own: tables of these words, and stages as short as the run."""
    config = load_config(ROOT / f"configs/{family}/tiny.yaml")
    if config.distill is not None:
        return ["distill=null", "model.layers=2"]  # stages know no teacher
    if config.model.cutoffs:
        return ["model.cutoffs=[128, 320]"]  # of 512 words
    return {"macbert": similar_words, "ernie": stages_and_dialogues}.get(family, lambda corpus: [])(corpus)


def trained(family: str, run: Path, corpus: Path, *words: str, code: int = 0) -> dict[int, list[float]]:
    megaptm("train", *arguments(family, run, corpus, f"train.steps={STEPS}", *words), code=code)
    return losses(run)


@pytest.mark.parametrize("family", CASES)
def test_a_tiny_model_goes_on_on_another_layout(family: str, corpus_of: Callable[[str], Path], tmp_path: Path) -> None:
    corpus = corpus_of(family)
    asked = changed(family, corpus)
    alone = trained(family, tmp_path / "alone", corpus, *asked)
    assert sorted(alone) == [*range(1, STEPS + 1)]
    trained(family, tmp_path / "run", corpus, *asked, "layout.tensor=2", f"train.stop_at={STOP}", code=75)
    done = trained(family, tmp_path / "run", corpus, *asked, "layout.pipeline=2")
    assert resumed_at(tmp_path / "run") == [STOP]
    for step, (loss,) in done.items():
        assert loss == pytest.approx(alone[step][0], rel=2e-4), step

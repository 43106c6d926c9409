"""Each family's tiny config is trained with 2 tensor ranks, stopped, and resumed with 2 pipeline stages."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from data_pipeline import commands
from megaptm.config import load_config
from megaptm.distillation.section import distill_section
from megaptm.families import CATALOGUE
from megaptm.families.macbert.corpus import write_similar_words
from megaptm.objectives import OBJECTIVES
from megaptm.tokenizers import load_tokenizer
from tests import ROOT
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

STEPS, STOP = 30, 15
IN_EACH_RUN = ("gpt2", "electra")
"""Families tested in each run of the tests; the others are drills."""
UNITS = {"tokens": {0: 2, 5: 0}, "words": {0: 0, 5: 2, 20: 0}, "entities": {0: 0, 20: 2}}
"""Stages of ERNIE 1.0: the second starts before the run is stopped, the third afterwards."""
ENTITIES = ("email", "header", "message", "charset", "policy")
"""Entities in the text."""
NUM_DIALOGUES, MIN_TURN_LENGTH = 300, 20
"""Number of dialogues, and minimum length of a turn."""
CASES = [name if name in IN_EACH_RUN else pytest.param(name, marks=pytest.mark.drill) for name in CATALOGUE]


@pytest.fixture(scope="session")
def corpus_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Function from a family to a corpus of its tokenizer, with all annotations."""
    folders: dict[tuple[str, str | None], Path] = {}

    def build(family: str) -> Path:
        table = CATALOGUE[family]
        key = (table.tokenizer.kind, table.tokenizer.specials)
        # A corpus is shared by families with the same tokenizer and special tokens.
        if key not in folders:
            folders[key] = tmp_path_factory.mktemp("family") / "corpus"
            specials = [] if table.tokenizer.specials is None else [f"tokenizer.specials={table.tokenizer.specials}"]
            commands.run_build_command(
                [
                    *sources(family, folders[key].parent),
                    *(f"out={folders[key]}", "workers=0", "validation=0.1", "limit_bytes=400000"),
                    *(f"tokenizer.kind={table.tokenizer.kind}", "tokenizer.vocabulary=512", *specials),
                    *("annotate.sentences=true", "annotate.words=true", "annotate.capitals=true"),
                    f"annotate.tags={write_tags(folders[key].parent)}",
                ],
                console=Console(quiet=True),
            )
        return folders[key]

    return build


def sources(family: str, folder: Path) -> list[str]:
    """Return sources: text, or, for a family that needs parallel text, lines and the same lines in capitals."""
    stdlib = Path(sysconfig.get_path("stdlib")) / "email"
    if "parts" not in OBJECTIVES[CATALOGUE[family].objectives[0]].annotations:
        return [str(stdlib)]
    lines = [line.strip() for path in sorted(stdlib.glob("*.py")) for line in path.read_text().splitlines()]
    for name, written in (("lines.en", lines), ("lines.up", [line.upper() for line in lines])):
        (folder / name).write_text("\n".join(written))
    return [str(ROOT / "configs/corpora/pairs.yaml"), f"sources=[{{path: {folder}/lines.en, aligned: .up}}]"]


def write_tags(folder: Path) -> Path:
    """Write a file of entities and their kinds."""
    (folder / "tags.tsv").write_text("".join(f"name\t{name}\n" for name in ENTITIES))
    return folder / "tags.tsv"


def ernie_overrides(corpus: Path) -> list[str]:
    """Return the objective and mix of ERNIE 1.0: units to hide in text that change twice, and dialogues."""
    dialogue_corpus, texts = corpus.parent / "talks", Path(sysconfig.get_path("stdlib")) / "email"
    turns = [line.strip() for path in sorted(texts.glob("*.py")) for line in path.read_text().splitlines()]
    turns = [turn for turn in turns if len(turn) > MIN_TURN_LENGTH]
    records = [
        {"messages": [{"role": "asker", "content": question}, {"role": "teller", "content": answer}]}
        for question, answer in zip(turns[::2], turns[1::2], strict=False)
    ]
    (corpus.parent / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records[:NUM_DIALOGUES]))
    commands.run_build_command(
        [
            str(ROOT / "configs/corpora/dialogue.yaml"),
            f"sources=[{{path: {corpus.parent}/talks.jsonl, messages: messages}}]",
            *(f"out={dialogue_corpus}", "workers=0", "validation=0.1", f"tokenizer={corpus}/tokenizer"),
        ],
        console=Console(quiet=True),
    )
    common = {"task": "masked-lm", "hide": "independent"}
    stages = {
        f"hidden-{units}": {
            **common,
            "units": units,
            "question": "next-sentence",
            "corpora": [str(corpus)],
            "share": share,
        }
        for units, share in UNITS.items()
    }
    dialogues = {
        "dialogues": {
            **common,
            "units": "tokens",
            "question": "dialogue",
            "corpora": [str(dialogue_corpus)],
            "share": 1,
        }
    }
    return [f"data.mix={{{corpus}: 1, {dialogue_corpus}: 1}}", f"objective={json.dumps(stages | dialogues)}"]


def macbert_overrides(corpus: Path) -> list[str]:
    """Return the objective of MacBERT, with a table of similar words for this text."""
    words = ["message", "header", "string", "value", "name", "part", "line", "text", "self", "return"]
    table = corpus.parent / "similar.npz"
    write_similar_words({word: {*words} - {word} for word in words}, load_tokenizer(corpus / "tokenizer"), table)
    masks = {"hide": "ngrams", "length_weights": [0.4, 0.3, 0.2, 0.1], "show": "similar-words", "similar": str(table)}
    return [f"objective={json.dumps({'masked-lm': masks, 'sentence-order': {}})}"]


def overrides_for(family: str, corpus: Path) -> list[str]:
    """Return the overrides that a tiny config needs for this corpus and number of steps."""
    config = load_config(ROOT / f"configs/{family}/tiny.yaml")
    if distill_section(config) is not None:
        return ["distill=null", "model.layers=2"]  # stages have no teacher
    if config.model.cutoffs:
        return ["model.cutoffs=[128, 320]"]  # vocabulary of 512
    return {"macbert": macbert_overrides, "ernie": ernie_overrides}.get(family, lambda corpus: [])(corpus)


def train(family: str, run: Path, corpus: Path, *words: str, code: int = 0) -> dict[int, list[float]]:
    megaptm("train", *arguments(family, run, corpus, f"train.steps={STEPS}", *words), code=code)
    return losses(run)


@pytest.mark.parametrize("family", CASES)
def test_tiny_model_resumes_on_another_layout(family: str, corpus_of: Callable[[str], Path], tmp_path: Path) -> None:
    corpus = corpus_of(family)
    overrides = overrides_for(family, corpus)
    one_process = train(family, tmp_path / "alone", corpus, *overrides)
    assert sorted(one_process) == [*range(1, STEPS + 1)]
    train(family, tmp_path / "run", corpus, *overrides, "layout.tensor=2", f"train.stop_at={STOP}", code=75)
    resumed = train(family, tmp_path / "run", corpus, *overrides, "layout.pipeline=2")
    assert resumed_at(tmp_path / "run") == [STOP]
    for step, (loss,) in resumed.items():
        assert loss == pytest.approx(one_process[step][0], rel=2e-4), step

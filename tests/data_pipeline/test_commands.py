"""The functions behind the command line: they print, and return values."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from data_pipeline.commands import run_build_command, run_verify_command, tokenizer_train
from data_pipeline.inspection import inspect_corpus
from megaptm.data.shards import read_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import load_tokenizer


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def small(folder: Path, vocabulary: int = 400) -> list[str]:
    return [f"out={folder / 'c'}", "workers=0", f"tokenizer.vocabulary={vocabulary}"]


def test_build_prints_report(text, tmp_path, console):
    report = run_build_command([str(text), *small(tmp_path)], console=console)
    assert f"{report.splits['train']['tokens']:,}" in printed(console)
    assert "dropped 2 duplicate" in printed(console)
    assert "dropped 1 not UTF-8 (library/latin.txt)" in printed(console)
    assert "settings of files on the command line: GLOB:KEY=VALUE" in printed(console)


def test_arguments_override_recipe(text, tmp_path, console):
    recipe = tmp_path / "corpus.yaml"
    recipe.write_text(f"sources: [{text}]\ntokenizer: {{kind: wordpiece, vocabulary: 600}}\nseed: 3\n")
    run_build_command([str(recipe), *small(tmp_path), "tokenizer.vocabulary=500"], console=console)
    manifest = read_manifest(tmp_path / "c")
    assert (manifest.tokenizer["kind"], manifest.tokenizer["vocabulary"]) == ("wordpiece", 500)
    assert manifest.made_from["recipe"]["seed"] == 3


def test_trained_tokenizer_is_used_by_build(text, tmp_path, console):
    trained = tokenizer_train([str(text)], str(tmp_path / "t"), vocabulary=400, console=console)
    report = run_build_command(
        [str(text), f"out={tmp_path}/c", f"tokenizer={tmp_path}/t", "workers=0"], console=console
    )
    assert (
        report.tokenizer["fingerprint"]
        == trained.fingerprint
        == load_tokenizer(tmp_path / "c" / "tokenizer").fingerprint
    )
    with pytest.raises(UserError, match="not empty"):
        tokenizer_train([str(text)], str(tmp_path / "t"), console=console)


ANNOTATE = "annotate={sentences: true, words: true}"
OBJECTIVES = [
    ("byte-bpe", "causal-lm", "labels: the next token, at 6"),
    ("wordpiece", "masked-lm-next-sentence", "second text:"),
    ("wordpiece", "masked-lm-sentence-order", "second text:"),
    ("wordpiece", "masked-lm-whole-word", "[MASK]→"),
    ("unigram", "span-corruption", "labels: <extra_id_0>"),
]


@pytest.mark.parametrize(("kind", "objective", "shown"), OBJECTIVES)
def test_inspect_shows_objective_samples(kind, objective, shown, text, tmp_path, console):
    run_build_command(
        [str(text), *small(tmp_path, 700), f"tokenizer.kind={kind}", ANNOTATE], console=Console(quiet=True)
    )
    inspect_corpus(str(tmp_path / "c"), objective=objective, count=6, sequence=64, console=console)
    assert f"{objective}, sample 5" in printed(console)
    assert shown in printed(console)
    assert "[MASK]→" in printed(console) or kind != "wordpiece"


def test_inspect_rejects_unknown_objective(text, tmp_path, console):
    run_build_command([str(text), *small(tmp_path)], console=console)
    for unknown, message in (("diffusion", "causal-lm, .*masked-lm"), ("clm", "did you mean causal-lm")):
        with pytest.raises(UserError, match=message):
            inspect_corpus(str(tmp_path / "c"), objective=unknown, console=console)
    with pytest.raises(UserError, match="needs a tokenizer with a `pad`"):
        inspect_corpus(str(tmp_path / "c"), objective="masked-lm", console=console)


def test_inspect_shows_documents(text, tmp_path, console):
    run_build_command([str(text), *small(tmp_path)], console=Console(quiet=True))
    inspect_corpus(str(tmp_path / "c"), count=20, sequence=40, console=console)
    assert "library/textwrap.py: " in printed(console)
    assert '"""Text wrapping and filling.' in printed(console)
    assert "documents by length in tokens" in printed(console)


def test_verify_reports_missing_file(text, tmp_path, console):
    run_build_command([str(text), *small(tmp_path)], console=Console(quiet=True))
    assert run_verify_command(str(tmp_path / "c"), console=console)
    assert "✗" not in printed(console)
    (tmp_path / "c" / "train-000000.tar").unlink()
    assert not run_verify_command(str(tmp_path / "c"), console=console)
    assert "✗ │ train-000000.tar" in printed(console)

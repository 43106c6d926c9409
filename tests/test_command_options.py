"""Effects of command options that no page shows."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from megaptm.checkpoint.store import GoneError
from megaptm.commands.corpus import corpus_group
from megaptm.commands.evaluate import evaluate_command
from megaptm.commands.export import export_group
from megaptm.commands.generate import generate_command
from megaptm.commands.tokenizer import tokenizer_group
from megaptm.distillation.commands import cache_logits_command
from megaptm.errors import UserError
from megaptm.tokenizers import load_tokenizer
from tests import ROOT
from tests.commands import run_command
from tests.train.runs import build, save_untrained, write_text


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a corpus, and a run with one checkpoint, of step 7."""
    folder = tmp_path_factory.mktemp("gpt2")
    made = build(write_text(folder / "tales"), folder / "corpus", "gpt2")
    return made, save_untrained("gpt2", folder / "run", made)[0]


def test_export_uses_step_and_dtype(gpt2, tmp_path):
    pytest.importorskip("transformers")
    run_command(export_group, "hf", gpt2[1], tmp_path / "half", "--step", 7, "--dtype", "bfloat16")
    assert {weights.dtype for weights in load_file(tmp_path / "half" / "model.safetensors").values()} == {
        torch.bfloat16
    }
    with pytest.raises(GoneError, match=r"has no checkpoint of step 8; its steps are \[7\]"):
        run_command(export_group, "hf", gpt2[1], tmp_path / "none", "--step", 8)
    assert not (tmp_path / "none").exists()


def test_evaluate_uses_step(gpt2):
    result = json.loads(run_command(evaluate_command, gpt2[1], "--step", 7, "--rows", 2, "--json"))
    assert result["step"] == 7
    with pytest.raises(GoneError, match="has no checkpoint of step 8"):
        run_command(evaluate_command, gpt2[1], "--step", 8, "--rows", 2)


def test_top_k_of_1_is_greedy(gpt2):
    says = [generate_command, gpt2[1], "--prompt", "The cat", "--tokens", 8, "--step", 7]
    assert run_command(*says, "--top-k", 1) == run_command(*says, "--greedy")
    assert run_command(*says, "--top-k", 0) != run_command(*says, "--greedy")


def test_length_penalty_changes_the_answer(tmp_path):
    made = build(write_text(tmp_path / "tales", documents=8), tmp_path / "corpus", "transformer")
    run, _ = save_untrained("transformer", tmp_path / "run", made)
    says = [generate_command, run, "--prompt", "The cat", "--tokens", 6, "--beams", 2]
    assert run_command(*says) == run_command(*says, "--length-penalty", 0.6)
    short, long = (len(run_command(*says, "--length-penalty", penalty)) for penalty in (0, 5))
    assert short <= long
    assert run_command(*says[:-2], "--greedy") == run_command(*says[:-1], 1)


def test_inspect_shows_the_split(gpt2):
    splits = ("train", "validation")
    train, held_out = (run_command(corpus_group, "inspect", gpt2[0], "--count", 2, "--split", name) for name in splits)
    assert train != held_out
    with pytest.raises(UserError, match="has no documents in its split `test`"):
        run_command(corpus_group, "inspect", gpt2[0], "--split", "test")


def test_tokenizer_sentinels_and_digits(tmp_path):
    (tmp_path / "text.txt").write_text("the year 1234 and the year 1234 and the year 12\n" * 50)
    words = ["train", tmp_path / "text.txt", "--out", tmp_path / "out", "--kind", "unigram", "--vocabulary", 200]
    run_command(tokenizer_group, *words)
    assert len(load_tokenizer(tmp_path / "out").special.sentinels) == 100  # of T5
    with pytest.raises(UserError, match="is not empty"):
        run_command(tokenizer_group, *words)
    run_command(tokenizer_group, *words, "--sentinels", 3, "--digits", "--overwrite")
    made = load_tokenizer(tmp_path / "out")
    assert len(made.special.sentinels) == 3
    assert {"1", "2", "3", "4"} <= {made.name(id_) for id_ in made.encode("1234").tolist()}


def test_cache_logits_logs_progress(monkeypatch, tmp_path):
    clock = iter([0.0, 30.0, 70.0, 71.0, 80.0])  # start; request; request with a log line; request
    monkeypatch.setattr("megaptm.distillation.commands.time", SimpleNamespace(monotonic=lambda: next(clock)))

    def run_teacher(config, *, tell, **_):
        for done in (10, 20, 30):
            tell(done, 40)
        return SimpleNamespace(manifest=SimpleNamespace(samples={}), missing=2, samples=30)

    monkeypatch.setattr("megaptm.distillation.cache.cache_logits", run_teacher)
    lines = CliRunner().invoke(cache_logits_command, [str(ROOT / "configs/bert/tiny.yaml"), "model.vocabulary=300"])
    assert lines.exit_code == 0, lines.output
    assert "20 of 40 samples" in lines.stderr
    assert len(lines.stderr.splitlines()) == 1

"""Failures that `make fuzz` found, reduced to the smallest input."""

import io
import json
import tarfile

import numpy as np
import pytest
import tokenizers
import torch
import yaml
from rich.console import Console

from data_pipeline.inspection import _document_source
from megaptm.data import open_mix
from megaptm.data.files import npy_bytes
from megaptm.errors import UserError
from megaptm.inference.evaluate import EvaluatedLoss, Evaluation, show_evaluation
from megaptm.inference.loaded_model import load_model
from megaptm.report.summary import _time_table
from megaptm.resilience.events import last_saved_step, read_events
from megaptm.run.time_spent import TimeSpent
from megaptm.tokenizers import load_tokenizer
from megaptm.tokenizers.word_cache import convert_library_errors, splits_at_spaces
from megaptm.track import read_metrics
from tests.data.corpora import tiny_corpus, tiny_special
from tests.fuzz.rehash import rehash_corpus
from tests.train.runs import save_untrained


def test_invalid_journal_lines_are_skipped(tmp_path):
    lines = [
        {"kind": "launch"},
        {"kind": "launch", "time": "1"},
        {"kind": ["launch"], "time": 1.0},
        {"kind": "checkpoint", "time": 1.0, "step": "7"},
        {"kind": "checkpoint", "time": 1.0},
        {"kind": "checkpoint", "time": 1.0, "step": 3},
        {"kind": "exit", "time": 10**400, "code": 0},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + "[" * 100_000)
    assert [event["kind"] for event in read_events(tmp_path)] == ["checkpoint", "checkpoint"]
    assert last_saved_step(tmp_path) == 3


def test_metrics_keep_only_numbers(tmp_path):
    lines = [
        {"time": 1.0, "step": "1", "loss": 2.0},
        {"time": 1.0, "step": [], "loss": 2.0},
        {"time": 1.0, "step": 2, "loss": "much", "lr": [], "norm": "inf", "extra": None},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_metrics(tmp_path) == [{"time": 1.0, "step": 2, "norm": float("inf")}]


@pytest.fixture
def tokenizer(tmp_path):
    content = {
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "[PAD]", "special": True, "single_word": False, "lstrip": False}],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[PAD]": 2}, "unk_token": "a"},
    }
    content["added_tokens"][0] |= {"rstrip": False, "normalized": False}

    def change(**parts):
        config = parts.pop("config", {})
        (tmp_path / "tokenizer.json").write_text(json.dumps({**content, **parts}))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return load_tokenizer(tmp_path)

    assert change().vocabulary == 3
    return change


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1 << 24}, "unk_token": "a"}},
        {"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}},
        {"model": {"type": 7, "vocab": {}}},
        {"model": []},
        {"added_tokens": [{"id": 1 << 40, "content": "x"}]},
        {"added_tokens": [{"id": 1, "content": ""}]},
        {"added_tokens": {}},
        {"normalizer": "NFC"},
        {"pre_tokenizer": [1]},
        {"version": "x" * 5000},
        {"config": {"pad_token": ["[PAD]"]}},
        {"config": {"pad_token": {"content": 7}}},
        {"config": {"pad_token": "\ud800"}},
    ],
    ids=str,
)
def test_invalid_tokenizer_part(tokenizer, parts):
    with pytest.raises(UserError) as error:
        tokenizer(**parts)
    assert len(str(error.value)) <= 1000
    assert str(error.value).isprintable()


def test_old_tokenizer_file_without_kind(tokenizer):
    model = {"vocab": {"a": 0, "b": 1, "ab": 2, "[PAD]": 3}, "merges": ["a b"]}
    assert tokenizer(model=model, added_tokens=[]).kind == "bpe"


def test_index_of_invalid_token_ids(tmp_path):
    tiny_corpus(tmp_path / "corpus", shards=1)
    path = tmp_path / "corpus/train-000000.index.npy"
    index = np.load(path)
    index[:, 0] = 512 * 2 + 100
    path.write_bytes(npy_bytes(index))
    rehash_corpus(tmp_path / "corpus")
    mix = open_mix(
        {str(tmp_path / "corpus"): 1.0}, objective="span-corruption", sequence=32, seed=0, special=tiny_special()
    )
    with pytest.raises(UserError, match="but its tokenizer has 1,000 ids"):
        assert [mix.sample(index) for index in range(mix.orders[0].per_epoch)]


def test_long_error_message_is_shortened():
    message = str(UserError("before\n\x1b[31m" + "x" * 100_000 + " after: fix it."))
    assert message.startswith("before")
    assert message.endswith("after: fix it.")
    assert len(message) <= 1000
    assert message.isprintable()


def test_several_errors_have_a_line_each():
    assert str(UserError("2 mistakes:", "one\n  of two", "another")) == "2 mistakes:\n  one   of two\n  another"


def test_sampling_from_nan_logits():
    from types import SimpleNamespace

    from megaptm.inference.generate import Sampler, Sampling

    sampler = Sampler(
        Sampling(), SimpleNamespace(special=SimpleNamespace(pad=None, begin=None, end=None), vocabulary=3)
    )
    with pytest.raises(UserError, match="logits are NaN or infinite"):
        sampler(torch.tensor([0.0, float("nan"), 1.0]))


def test_inspection_survives_unreadable_sources(tmp_path):
    path = tmp_path / "train-000000.tar"
    assert _document_source(path, 3) == "train-000000.tar, document 3"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("000000000000.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for content in (b"[1]", b'{"source": 7}', b"{"):
            member = tarfile.TarInfo("000000000001.json")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    sources = [_document_source(path, document) for document in range(4)]
    assert sources == [f"train-000000.tar, document {n}" if n != 1 else "7" for n in range(4)]


def test_library_error_becomes_a_user_error():
    with pytest.raises(UserError, match="failed to encode a text"), convert_library_errors():
        tokenizers.Tokenizer(tokenizers.models.Unigram([("a", -1.0)])).encode("b")


def test_tokenizer_parts_without_a_type():
    library = tokenizers.Tokenizer(tokenizers.models.WordPiece({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    for content in ({"normalizer": {}}, {"pre_tokenizer": {}}, {"normalizer": {}, "pre_tokenizer": {}}):
        assert not splits_at_spaces({"model": {}, **content}, library)


def test_infinite_perplexity_is_printed():
    losses = {"mlm": EvaluatedLoss(num_labels=1, model=800.0, unigram=2.0, uniform=3.0)}
    evaluation = Evaluation("run", 1, "masked-lm", {}, 1, losses, {"mlm": 1.0}, None)
    show_evaluation(evaluation, Console(file=(output := io.StringIO())))
    assert "800.0000         inf" in output.getvalue()


def test_report_of_negative_seconds():
    assert _time_table(TimeSpent(productive=5.0, wall=0.0)).row_count == 3


def test_config_larger_than_memory_is_rejected(tmp_path, real_corpus):
    run, _ = save_untrained("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"]["ffn"] = 1 << 50
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match="restore the config with which it was trained"):
        load_model(run)

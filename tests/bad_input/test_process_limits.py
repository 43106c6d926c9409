"""Limits on files and memory, and old locales: one sentence, no traceback."""

import json
import os
import resource
import subprocess
import sys

import pytest

from megaptm.errors import UserError, resource_errors_as_user_errors, resource_limit_message
from megaptm.tokenizers import load_tokenizer
from tests import ROOT


def megaptm(*words, **options):
    command = [sys.executable, "-m", "megaptm", *words]
    return subprocess.run(command, capture_output=True, check=False, cwd=ROOT, **options)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_ascii_locale_prints_question_marks(encoding, tmp_path):
    machine = (ROOT / "configs/machines/a100-80g.yaml").read_text()
    path = tmp_path / "machine.yaml"
    path.write_text(machine.replace("name: A100 80 GB", "name: \u914d\u7f6e\u6587\u4ef6\u540d"), encoding="utf-8")
    done = megaptm("plan", "gpt2/tiny", "--machine", str(path), env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?????" in done.stdout


def test_limit_of_open_files(real_corpus, tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))

    words = [f"data.mix={{{real_corpus('byte-bpe')}: 1}}", f"run={tmp_path / 'run'}", "track.enabled=false"]
    done = megaptm("train", "gpt2/tiny", *words, preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr == (
        b"error: too many open files for this process: raise the limit (`ulimit -n 4096`) and start again.\n"
    )


def test_too_little_address_space():
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (700 << 20, 700 << 20))

    done = megaptm("families", preexec_fn=limit)
    assert done.returncode == 2
    assert done.stderr == (
        b"error: this process may use only 700 MiB of address space: raise the limit to 1,536 MiB or more "
        b"(`ulimit -v 1572864`, in KiB).\n"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(24, "Too many open files"), "too many open files"),
        (RuntimeError("[enforce fail at device.cc:186] rv != -1. Too many open files"), "too many open files"),
        (RuntimeError("can't start new thread"), "no more threads or processes"),
        (BlockingIOError(11, "Resource temporarily unavailable"), "no more threads or processes"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "not enough memory"),
        (RuntimeError("Storage size calculation overflowed with sizes=[3221225472, 1073741824]"), "not enough memory"),
        (MemoryError(), r"not enough memory for this process \(MemoryError\)"),
    ],
)
def test_exceeded_limit_is_named(error, expected):
    with pytest.raises(UserError, match=f"^{expected}"), resource_errors_as_user_errors():
        raise error


def test_other_errors_are_unchanged():
    assert resource_limit_message(RuntimeError("shapes differ")) is None


def test_exponential_pattern(tmp_path):
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"^the tokenizer failed to encode a text .*retry-limit"):
        tokenizer.encode("a" * 40 + "!")


def replacement(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "parts",
    [
        [replacement({"String": "a"}, "a" * 100)] * 4,
        [replacement({"Regex": "."}, "ab")] * 30,
        [{"type": "Prepend", "prepend": "a" * 100_000}],
    ],
    ids=["copies", "doublings", "prefix"],
)
def test_normalizer_that_multiplies_text_is_refused(tmp_path, parts):
    content = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": parts},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="its normalizer replaces one character by more than 1,000"):
        load_tokenizer(tmp_path)

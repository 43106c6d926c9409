"""Output folders below a file or on a read-only disk: one sentence, and no partial output."""

import os
import subprocess
import sys

import pytest

from tests.bad_input.commands import CONFIGS, content, user_error
from tests.train.runs import KINDS, build, save_untrained, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with text, a corpus, a run and a file."""
    folder = tmp_path_factory.mktemp("folder")
    build(write_text(folder / "text"), folder / "corpus", "gpt2")
    save_untrained("gpt2", folder / "run", folder / "corpus")
    (folder / "file").touch()
    return folder


def commands(folder, target):
    """Commands that create `target`."""
    mix = f"data.mix={{{folder / 'corpus'}: 1}}"
    small = [f"model.vocabulary={KINDS['gpt2'][1]}", "train.batch=2", "layout.microbatch=2", "data.sequence=32"]
    return [
        ["train", CONFIGS / "gpt2/tiny.yaml", f"run={target}", mix, *small],
        ["corpus", "build", folder / "text", f"out={target}", "workers=0", "tokenizer.vocabulary=300"],
        ["tokenizer", "train", folder / "text", "--out", target, "--vocabulary", "300"],
        ["export", "hf", folder / "run", target],
    ]


@pytest.mark.parametrize("number", range(4))
def test_output_below_a_file(folder, number):
    words = commands(folder, folder / "file/inner")[number]
    assert str(folder / "file") in user_error(*words)
    assert (folder / "file").read_bytes() == b""


def run_read_only(path, *words):
    """Run a command while nothing in `path` can be written."""
    command = [sys.executable, "-m", "megaptm", *map(str, words)]
    if os.geteuid():
        mode = path.stat().st_mode
        path.chmod(0o500)
    else:  # modes do not restrict root: use a mount that only this process has
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(path), *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        if os.geteuid():
            path.chmod(mode)
    return done


@pytest.mark.parametrize("number", range(4))
def test_output_in_a_read_only_folder(folder, number, tmp_path):
    done = run_read_only(tmp_path, *commands(folder, tmp_path / "inner")[number])
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert str(tmp_path) in line
    assert content(tmp_path) == {}


@pytest.mark.parametrize("command", ["train", "report", "evaluate"])
def test_read_only_run(folder, command):
    before = content(folder / "run")
    done = run_read_only(folder / "run", command, folder / "run")
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)
    assert content(folder / "run") == before

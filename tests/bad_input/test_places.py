"""A place that cannot be written to: below a file, on a disk that is read-only. One sentence, and nothing half-made."""

import os
import subprocess
import sys

import pytest

from tests.bad_input.mistakes import CONFIGS, content, told
from tests.train.runs import KINDS, build, save_untrained, write_text


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Text, a corpus and a run."""
    place = tmp_path_factory.mktemp("place")
    build(write_text(place / "text"), place / "corpus", "gpt2")
    save_untrained("gpt2", place / "run", place / "corpus")
    (place / "file").touch()
    return place


def commands(place, target):
    """Every command that makes a folder, given this one."""
    mix = f"data.mix={{{place / 'corpus'}: 1}}"
    small = [f"model.vocabulary={KINDS['gpt2'][1]}", "train.batch=2", "layout.microbatch=2", "data.sequence=32"]
    return [
        ["train", CONFIGS / "gpt2/tiny.yaml", f"run={target}", mix, *small],
        ["corpus", "build", place / "text", f"out={target}", "workers=0", "tokenizer.vocabulary=300"],
        ["tokenizer", "train", place / "text", "--out", target, "--vocabulary", "300"],
        ["export", "hf", place / "run", target],
    ]


@pytest.mark.parametrize("number", range(4))
def test_below_a_file(place, number):
    words = commands(place, place / "file/inner")[number]
    assert str(place / "file") in told(*words)
    assert (place / "file").read_bytes() == b""


def on_read_only(folder, *words):
    """What a command says and with which code it ends, while nothing in `folder` can be written."""
    command = [sys.executable, "-m", "megaptm", *map(str, words)]
    if os.geteuid():
        mode = folder.stat().st_mode
        folder.chmod(0o500)
    else:  # whom no mode stops: a mount, seen by this process alone
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(folder), *command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        if os.geteuid():
            folder.chmod(mode)
    return done


@pytest.mark.parametrize("number", range(4))
def test_in_a_read_only_folder(place, number, tmp_path):
    done = on_read_only(tmp_path, *commands(place, tmp_path / "inner")[number])
    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in done.stderr
    assert str(tmp_path) in line
    assert content(tmp_path) == {}


@pytest.mark.parametrize("command", ["train", "report", "evaluate"])
def test_a_read_only_run(place, command):
    before = content(place / "run")
    done = on_read_only(place / "run", command, place / "run")
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)
    assert content(place / "run") == before

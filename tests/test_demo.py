"""`make demo` on a text of a few pages, for eight steps."""

import io
import json
import sys

import pytest
import yaml
from rich.console import Console

from megaptm.demo import Demo, _run_command, main
from megaptm.errors import UserError
from megaptm.resilience.events import read_events
from tests import ROOT
from tests.train.runs import CONFIGS, write_text

pytest.importorskip("ray")


def demo(text, folder, config):
    """Return a demo and its console output, without the output of its commands."""
    printed = io.StringIO()
    return Demo(str(text), folder, str(config), Console(file=printed, width=100)), printed


@pytest.fixture
def small(tmp_path):
    """Return a book in one file, and the config of a tiny model."""
    tales = write_text(tmp_path / "tales")
    book = tmp_path / "book.txt"
    book.write_text("\n\n".join(path.read_text() for path in sorted(tales.iterdir())))
    config = tmp_path / "config.yaml"
    settings = {"extends": str(CONFIGS / "gpt2/tiny.yaml"), "model": {"width": 32, "vocabulary": 300, "context": 32}}
    settings |= {"data": {"sequence": 32}, "train": {"steps": 8, "validate_batches": 1}}
    config.write_text(yaml.safe_dump(settings))
    return book, config


def test_demo_completes_and_repeats_nothing(small, tmp_path):
    book, config = small
    first, printed = demo(book, tmp_path / "demo", config)
    first.run_all()
    output = printed.getvalue()
    assert f"corpus build {tmp_path}/demo/corpus.yaml out={tmp_path}/demo/corpus" in output
    assert "Exit code 75" in output
    for line in ("bits per byte", "unigram", "uniform", "● training", "mlflow ui", "export hf"):
        assert line in output

    run = tmp_path / "demo" / "run"
    starts = [event for event in read_events(run) if event["kind"] in ("start", "resume")]
    assert [event["layout"]["data"] for event in starts] == [2, 1]
    assert [event["layout"]["pipeline"] for event in starts] == [1, 2]
    assert starts[1]["step"] == 4
    assert json.loads((run / "evaluation.json").read_text())["step"] == 8
    assert (run / "report" / "loss.png").stat().st_size > 10_000
    picture = (tmp_path / "demo" / "demo.svg").read_text()
    assert "perplexity" in picture
    assert "font-face" not in picture

    again, printed = demo(book, tmp_path / "demo", config)
    again.run_all()
    assert printed.getvalue().count("already done") == 3
    assert "bits per byte" in printed.getvalue()
    assert len([event for event in read_events(run) if event["kind"] == "launch"]) == 2

    other, _ = demo(tmp_path / "tales", tmp_path / "demo", config)
    with pytest.raises(UserError, match=r"was built from .*book.txt: remove it to start with other text"):
        other.run_all()


def test_ctrl_c_waits_until_the_command_has_saved(tmp_path, monkeypatch):
    """`subprocess.run` kills a command a quarter of a second after Ctrl-C, in the middle of a step."""
    command = (
        "import os, signal, sys, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(1); open(sys.argv[1], 'x')"
    )
    monkeypatch.setattr("megaptm.demo.module_command", lambda *words: [sys.executable, "-c", command, words[-1]])
    with pytest.raises(KeyboardInterrupt):
        _run_command([str(tmp_path / "saved")], (0,))
    assert (tmp_path / "saved").exists()


def test_second_text_is_refused():
    with pytest.raises(UserError, match="set TEXT to one file"):
        main(["one.txt", "two.txt"])


@pytest.mark.parametrize("layout", ["layout.data=2", "layout.pipeline=2", "layout.tensor=2"])
def test_demo_config_fits_two_processes(layout):
    from megaptm.config import load_config

    assert load_config(ROOT / "configs/demo/gpt2.yaml", [layout]).layout.processes == 2

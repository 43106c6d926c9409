"""`make demo` in small: the same commands, on a text of a few pages and for eight steps."""

import io
import json

import pytest
import yaml
from rich.console import Console

from megaptm.demo import SCALES, Demo, Scale, choose_scale, main
from megaptm.errors import UserError
from megaptm.resilience.events import read_events
from tests import ROOT
from tests.train.runs import CONFIGS, write_text

pytest.importorskip("ray")


def demo(text, folder, config):
    """The demo, and what it prints itself; what its commands print goes where the test's output goes."""
    printed = io.StringIO()
    scales = (Scale(layers=4, width=32, steps=8, cost=1.0),)
    return Demo(str(text), folder, str(config), scales, Console(file=printed, width=100)), printed


@pytest.fixture
def small(tmp_path):
    """The text of a book in one file, and the config of a model that is too small to learn it."""
    tales = write_text(tmp_path / "tales")
    book = tmp_path / "book.txt"
    book.write_text("\n\n".join(path.read_text() for path in sorted(tales.iterdir())))
    config = tmp_path / "config.yaml"
    settings = {"extends": str(CONFIGS / "gpt2/tiny.yaml"), "model": {"width": 32, "vocabulary": 300, "context": 32}}
    settings |= {"data": {"sequence": 32}, "train": {"steps": 8, "validate_batches": 1}}
    config.write_text(yaml.safe_dump(settings))
    return book, config


def test_the_demo_does_all_and_does_nothing_twice(small, tmp_path):
    book, config = small
    first, printed = demo(book, tmp_path / "demo", config)
    first.go()
    told = printed.getvalue()
    assert f"corpus build {tmp_path}/demo/corpus.yaml out={tmp_path}/demo/corpus" in told
    assert "Chosen: 8 steps of 4 layers of width 32" in told
    assert "Exit code 75" in told
    for line in ("bits per byte", "unigram", "uniform", "● training", "mlflow ui", "export hf"):
        assert line in told

    run = tmp_path / "demo" / "run"
    begun = [event for event in read_events(run) if event["kind"] in ("start", "resume")]
    assert [event["layout"]["data"] for event in begun] == [2, 1]
    assert [event["layout"]["pipeline"] for event in begun] == [1, 2]
    assert begun[1]["step"] == 4
    assert json.loads((run / "evaluation.json").read_text())["step"] == 8
    assert (run / "report" / "loss.png").stat().st_size > 10_000
    picture = (tmp_path / "demo" / "demo.svg").read_text()
    assert "perplexity" in picture
    assert "font-face" not in picture

    again, printed = demo(book, tmp_path / "demo", config)
    again.go()
    assert printed.getvalue().count("done before") == 3
    assert "bits per byte" in printed.getvalue()
    assert len([event for event in read_events(run) if event["kind"] == "launch"]) == 2

    other, _ = demo(tmp_path / "tales", tmp_path / "demo", config)
    with pytest.raises(UserError, match=r"was made from .*book.txt: remove it to begin with other text"):
        other.go()


@pytest.mark.parametrize(
    ("pass_seconds", "steps", "width"), [(0.001, 600, 128), (0.1, 600, 128), (0.25, 150, 128), (2.0, 150, 96)]
)
def test_a_slower_machine_trains_fewer_steps_and_a_smaller_model(pass_seconds, steps, width):
    chosen = choose_scale(pass_seconds)
    assert (chosen.steps, chosen.width) == (steps, width)


def test_one_text_at_a_time():
    with pytest.raises(UserError, match="give one text"):
        main(["one.txt", "two.txt"])


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("layout", ["layout.data=2", "layout.pipeline=2", "layout.tensor=2"])
def test_what_make_demo_trains_is_a_config_that_fits_two_processes(scale, layout):
    from megaptm.config import load

    assert load(ROOT / "configs/demo/gpt2.yaml", [*scale.overrides, layout]).layout.processes == 2

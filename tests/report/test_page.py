"""The page of a run and of a comparison, as a browser shows them; the marks of a run; `megaptm watch`."""

import io
import json
import os
import shutil

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.config import config_to_yaml, load_config
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.report.compare import config_differences, print_comparison, read_runs, result_rows
from megaptm.report.curves import MAX_POINTS, other_panels, thin_out
from megaptm.report.history import History, split_abandoned
from megaptm.report.marks import KINDS, find_marks
from megaptm.report.page import run_page, write_report_page
from megaptm.report.watch import has_ended, render_run, watch_run
from megaptm.resilience.events import Event
from tests.report.browser import look, needs_chromium
from tests.report.test_summary import EVENTS, RECORDS, TINY, step_records
from tests.train.runs import CONFIGS

BROWSER_SECONDS = 240
NAME = "run <b>&amp; $x$"
"""Name of a run that is neither HTML nor a formula."""


def write(run, *, events=EVENTS, records=RECORDS, config=None):
    run.mkdir(exist_ok=True)
    (run / "config.yaml").write_text(config_to_yaml(config or load_config(TINY)))
    for name, lines in (("events.jsonl", events), ("metrics.jsonl", records)):
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / NAME)


def test_repeated_steps_are_abandoned():
    current, abandoned = split_abandoned(RECORDS)
    assert [record["step"] for record in current if "loss" in record] == list(range(1, 11))
    assert [(record["step"], record["time"]) for record in abandoned] == [(6, 1022.5), (7, 1024.5)]


def test_steps_that_are_not_reached_again_are_abandoned():
    """The run returned from step 9 to 5, and is now at step 6. An evaluation of step 3 belongs to no job."""
    evaluation = {"time": 20.0, "step": 3, "evaluation/lm": 2.0}
    records = [*step_records(0.0, 1, 9), evaluation, *step_records(100.0, 6, 6)]
    current, abandoned = split_abandoned(records)
    assert [record["step"] for record in current] == [1, 2, 3, 4, 5, 6, 3]
    assert [record["step"] for record in abandoned] == [6, 7, 8, 9]


def test_other_metrics_of_a_step_are_not_abandoned():
    """Norms and metrics of callbacks may have records of their own, before or after that of their step."""
    records = step_records(0.0, 1, 4)
    norms = [{"time": record["time"] - 0.1, "step": record["step"], "weight_norm/embed": 1.0} for record in records]
    again = step_records(100.0, 3, 4)
    current, abandoned = split_abandoned([*records, *norms, *again])
    assert [record["step"] for record in current if "loss" in record] == [1, 2, 3, 4]
    assert [record["step"] for record in current if "loss" not in record] == [1, 2]
    assert sorted(record["step"] for record in abandoned) == [3, 3, 4, 4]


def test_metrics_at_the_start_of_a_later_job_are_its_own():
    """A callback records a metric when the run continues from step 2, after it had reached step 4 and validated."""
    validated = {"time": 9.0, "step": 4, "validation/loss": 1.0}
    started = {"time": 99.0, "step": 2, "my/start": 1.0}
    records = [*step_records(0.0, 1, 4), validated, started, *step_records(100.0, 3, 3)]
    current, abandoned = split_abandoned(records)
    assert [record["step"] for record in current] == [1, 2, 2, 3]
    assert [record["time"] for record in abandoned] == [6.0, 8.0, 9.0]


def test_return_to_a_step_abandons_later_ones_at_once():
    back = {"time": 50.0, "kind": "back", "step": 5, "from_step": 9}
    current, abandoned = split_abandoned(step_records(0.0, 1, 9), [back])
    assert [record["step"] for record in current] == [1, 2, 3, 4, 5]
    assert [record["step"] for record in abandoned] == [6, 7, 8, 9]


def test_several_returns_without_a_step_between():
    backs = [{"time": 50.0 + step, "kind": "back", "step": step} for step in (5, 3, 0)]
    current, abandoned = split_abandoned(step_records(0.0, 6, 9), backs)
    assert (current, len(abandoned)) == ([], 4)


def test_lowest_validation_loss_is_finite(tmp_path):
    losses = {2: "nan", 4: 2.0, 6: 1.5, 8: 1.75}
    validations = [{"time": 2000.0 + step, "step": step, "validation/loss": loss} for step, loss in losses.items()]
    run = write(tmp_path / "run", records=[*step_records(0.0, 1, 8), *validations])
    assert History.read(run).lowest_validation == (6, 1.5)
    assert "validation loss, lowest  1.5000 at step 6" in CliRunner().invoke(main, ["report", str(run)]).output


def test_branch_is_compared_with_its_origin(tmp_path):
    parent, branch = (
        write(tmp_path / "parent"),
        write(tmp_path / "branch", config=load_config(TINY, ["optimizer.lr=0.5"])),
    )
    history = History.read(branch)
    event = {"time": 1.0, "kind": "branch", "step": 5, "run": str(parent), "weights_only": False}
    history.events.append(event)
    assert "<tr><td>optimizer.lr</td><td>0.002</td><td>0.5</td></tr>" in "".join(run_page(history, []))


def test_events_are_marks_at_their_steps():
    """An event without a step is at the last step before it."""
    change = {
        "time": 1106.0,
        "kind": "change",
        "step": 5,
        "before": {"optimizer.lr": 0.1, "train.batch": 8},
        "after": {"optimizer.lr": 0.05, "train.batch": 16},
    }
    marks = [(mark.step, mark.kind, mark.text) for mark in find_marks([*EVENTS, change], RECORDS)]
    assert marks == [
        (5, "restart", "resume from a checkpoint"),
        (5, "change", "change: optimizer.lr 0.1 -> 0.05, train.batch 8 -> 16"),
        (7, "failure", "worker-lost: rank 1, code -9"),
    ]


def test_return_of_the_user_is_no_failure():
    """Checkpoints that a return sets aside have no marks: nothing happened to the run at their steps."""
    rates = {"rate_before": 0.0019977069, "rate_after": 0.001}
    events = [
        {"time": 0.0, "kind": "change", "step": 7, "before": {"train.batch": 8}, "after": {"train.batch": 16}},
        {"time": 1.0, "kind": "abandoned-checkpoint", "step": 9, "path": "step-00000009.abandoned"},
        {"time": 2.0, "kind": "back", "step": 5, "from_step": 9, "skip": 2, "spike": None, "samples": []},
        {"time": 3.0, "kind": "schedule", "step": 7, **rates, "before": {}, "after": {}},
    ]
    assert [(mark.step, mark.kind, mark.text) for mark in find_marks(events, [])] == [
        (5, "restart", "return from step 9: 2 batches of text skipped"),
        (7, "change", "change: train.batch 8 -> 16; undone by the return to step 5"),
        (7, "change", "another schedule: learning rate 0.001998 -> 0.001"),
    ]


def test_marked_events_exist():
    assert set(KINDS) <= {event.kind for event in Event.__subclasses__()}


def test_spike_is_marked():
    records = [{"time": float(step), "step": step, "loss": 9.0 if step == 80 else 3.0} for step in range(1, 100)]
    event = {"time": 80.0, "kind": "spike", "step": 80, "description": "loss 9", "skipped": False}
    [mark] = find_marks([event], records)
    assert (mark.step, mark.kind, mark.text) == (80, "spike", "spike: loss 9")


def test_thinned_curve_keeps_its_extremes():
    points = [(step, float(step % 10)) for step in range(100_000)]
    points[54_321] = (54_321, 99.0)
    thinned = thin_out(points)
    assert len(thinned) <= MAX_POINTS
    assert (54_321, 99.0) in thinned
    assert thinned == sorted(thinned)
    assert thin_out(points[:MAX_POINTS]) == points[:MAX_POINTS]


def test_metrics_of_callbacks_have_panels():
    records = [{"step": 1, "loss": 2.0, "gradient_norm": 1.0, "my/a": 1.0, "my/b": 2.0, "samples": 4.0}]
    assert other_panels(records) == {
        "gradient norm": {"": [(1, 1.0)]},
        "my": {"a": [(1, 1.0)], "b": [(1, 2.0)]},
    }


@needs_chromium
@pytest.mark.timeout(2 * BROWSER_SECONDS)
def test_page_of_a_run_in_a_browser(run, tmp_path):
    page = tmp_path / "page.html"
    write_report_page(page, NAME, run_page(History.read(run), [], "There are no samples here: none."))
    view = look(page)
    assert view["headings"] == ["Curves", "Where time went", "Jobs", "Memory", "Samples", "Config"]
    assert NAME in view["text"]
    assert "gpt2/custom, causal-lm; step 10 of 300 in 2 jobs" in view["text"]
    assert "There are no samples here: none." in view["text"]
    [(width, height)] = view["svg"]
    assert (width > 600, height > 400, view["curves"] > 20) == (True, True, True)
    assert {"worker-lost: rank 1, code -9", "2026-01-01"} & {*view["cells"]} == {"worker-lost: rank 1, code -9"}
    widths = [width for width, _ in view["bars"]]
    assert (len(widths) > 15, max(widths) > 300, min(widths) > 0) == (True, True, True)
    assert view["requests"] == []
    assert view["overflow"] <= 0
    assert look(page, width=500)["overflow"] <= 0


@needs_chromium
@pytest.mark.timeout(BROWSER_SECONDS)
def test_page_of_a_comparison_in_a_browser(run, tmp_path):
    other = write(
        tmp_path / "other", records=step_records(1010.0, 1, 40), config=load_config(TINY, ["optimizer.lr=0.5"])
    )
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(run), str(other), "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "optimizer.lr" in done.output
    view = look(page)
    assert view["headings"] == ["Results", "Curves", "Differences of the configs"]
    assert {NAME, "other", "optimizer.lr", "0.5", "40"} <= {*view["cells"]}
    assert [width > 600 for width, _ in view["svg"]] == [True]
    assert (view["requests"], view["overflow"]) == ([], 0)


def test_page_shows_samples_with_masks(real_corpus, tmp_path):
    corpus = real_corpus("wordpiece")
    config = load_config(CONFIGS / "bert/tiny.yaml", [f"data.mix={{{corpus}: 1}}", "model.vocabulary=512"])
    run, page = write(tmp_path / "run", config=config), tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(run), "--html", str(page), "--samples", "2"])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.count("<p class=faint>sample ") == 2
    assert "<mark>[MASK]→" in text
    shutil.move(corpus / "manifest.json", corpus / "hidden")
    try:
        done = CliRunner().invoke(main, ["report", str(run), "--html", str(page)])
    finally:
        shutil.move(corpus / "hidden", corpus / "manifest.json")
    assert done.exit_code == 0, done.output
    assert "There are no samples here: " in page.read_text()


def test_page_shows_differences_to_the_parent(tmp_path):
    parent = write(tmp_path / "parent")
    child = write(tmp_path / "child", config=load_config(TINY, ["optimizer.lr=0.5", f"train.init_from={parent}"]))
    assert "<tr><td>optimizer.lr</td><td>0.002</td><td>0.5</td></tr>" in "".join(run_page(History.read(child), []))
    shutil.rmtree(parent)
    assert "Its config cannot be read" in "".join(run_page(History.read(child), []))


def test_config_differences_are_by_key():
    configs = [load_config(TINY), load_config(TINY, ["optimizer.lr=0.5", "data.mix={other: 1}", "run=elsewhere"])]
    assert config_differences(configs) == {
        "data.mix": ['{"corpora/tiny": 1.0}', '{"other": 1.0}'],
        "optimizer.lr": ["0.002", "0.5"],
    }


def test_keys_of_an_absent_section_are_no_differences():
    configs = [load_config(TINY), load_config(TINY, ["train.ramp={steps: {0: 8, 50: 16}}"])]
    assert config_differences(configs) == {"train.ramp.steps.0": ["", "8"], "train.ramp.steps.50": ["", "16"]}


def test_keys_and_titles_of_a_comparison_are_not_broken(run, tmp_path):
    runs = [
        write(tmp_path / f"run-{each}", config=load_config(TINY, [f"optimizer.lr=0.{each}"])) for each in range(1, 5)
    ]
    screen = io.StringIO()
    print_comparison(read_runs([run, *runs]), Console(file=screen, width=80))
    assert "\noptimizer.lr  0.002 " in screen.getvalue()
    assert " validation " in screen.getvalue()


def test_comparison_of_long_values_has_all_runs(run, tmp_path):
    """The values are wrapped, and no column is cut off."""
    mix = "data.mix={/corpora/of/a/long/path/to/books: 1, /corpora/of/a/long/path/to/the/web: 2}"
    runs = [
        write(tmp_path / f"run-{each}", config=load_config(TINY, [mix, f"optimizer.lr=0.{each}"]))
        for each in range(1, 5)
    ]
    screen = io.StringIO()
    print_comparison(read_runs([run, *runs]), Console(file=screen, width=80))
    [titles] = [line for line in screen.getvalue().splitlines() if line.startswith("key ")]
    assert titles.split()[-4:] == ["run-1", "run-2", "run-3", "run-4"]
    assert "\ndata.mix " in screen.getvalue()


def test_config_differences_have_the_values_of_later_phases():
    phases = "phases=[{until: 100}, {until: 200, optimizer.lr: 1e-3}, {data: {sequence: 64}}]"
    assert config_differences([load_config(TINY), load_config(TINY, [phases])]) == {
        "optimizer.lr, after step 100": ["", "0.001"],
        "data.sequence, after step 200": ["", "64"],
    }


def test_runs_of_the_same_name_are_compared_by_path(run, tmp_path):
    (tmp_path / "more").mkdir()
    other = write(tmp_path / "more" / NAME)
    assert list(read_runs([run, other])) == [str(run), str(other)]
    titles, *rows = result_rows(read_runs([run, other]))
    assert titles[:4] == ["run", "steps", "training loss", "validation loss"]
    assert rows[0][1:4] == ["10", "0.8000", "1.5000"]
    with pytest.raises(UserError, match="a run is given twice"):
        read_runs([run, tmp_path / "more" / ".." / NAME])


def test_upload_of_several_runs_is_refused(run, tmp_path):
    refused = CliRunner().invoke(main, ["report", str(run), str(run), "--upload"])
    assert "--upload is for one run" in str(refused.exception) + refused.output


def test_watch_prints_a_run_once_without_a_terminal(run):
    done = CliRunner().invoke(main, ["watch", str(run)])
    assert done.exit_code == 0, done.output
    assert "step 10 of 300 in 2 jobs" in done.output
    assert "100 tokens/s" in done.output
    assert "worker-lost: rank 1, code -9" in done.output


def test_watch_draws_until_the_job_ends(run, monkeypatch):
    """The run continues while it is watched: each look reads the journals again."""
    write(run, events=EVENTS[:-1])
    looks = []

    def grow(seconds):
        looks.append(seconds)
        write(run, events=EVENTS, records=[*RECORDS, *step_records(1130.0, 11, 12)])

    monkeypatch.setattr("megaptm.report.watch.time.sleep", grow)
    screen = io.StringIO()
    assert not has_ended(run)
    watch_run(run, Console(file=screen, force_terminal=True, width=80), seconds=0.5)
    assert len(looks) == 1
    assert looks[0] >= 0.5
    assert "step 10 of 300" in screen.getvalue()
    assert "step 12 of 300" in screen.getvalue()


def test_watch_shows_no_estimate_of_an_earlier_job(run):
    records = [*step_records(0.0, 1, 4), *step_records(100.0, 5, 5)]
    records[3]["seconds_left"] = 60.0
    screen = io.StringIO()
    for count in (4, 5):
        write(run, events=EVENTS[:1], records=records[:count])
        Console(file=screen, width=100).print(render_run(run, 100))
    assert screen.getvalue().count("1:00 left") == 1


@pytest.mark.parametrize("height", [20, 24, 60])
def test_watch_fits_the_terminal(run, height):
    screen = io.StringIO()
    Console(file=screen, width=100).print(render_run(run, 100, height=height))
    assert len(screen.getvalue().splitlines()) <= height


def test_watch_waits_for_the_first_step(tmp_path):
    run = write(tmp_path / "run", records=[], events=EVENTS[:1])
    os.remove(run / "metrics.jsonl")
    screen = io.StringIO()
    watch_run(run, Console(file=screen, width=200), seconds=0.0)
    assert f"no step is done yet; the last event ({EVENTS[0]['kind']}) was" in screen.getvalue()

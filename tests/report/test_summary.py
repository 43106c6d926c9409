"""The report: time spent, curves and table, from journals as the trainer writes them."""

import io
import json
from pathlib import Path

import pytest
import yaml

from megaptm.config import config_to_yaml, load_config
from megaptm.console import Console
from megaptm.errors import UserError, printable
from megaptm.report.curves import draw_curves, loss_curves, metric_curve, plot_curves
from megaptm.report.history import History
from megaptm.report.page import run_page
from megaptm.report.summary import report_run
from megaptm.run.time_spent import job_times, time_spent

TINY = Path(__file__).parents[2] / "configs/gpt2/tiny.yaml"


def step_records(begin, first, last, *, seconds=2.0, wait=0.5):
    """Return records of single steps `first` to `last`. The first step is done at `begin` + `seconds`."""
    return [
        {
            "time": begin + seconds * (number + 1),
            "step": step,
            "loss": 8.0 / step,
            "learning_rate": 0.1,
            "tokens_per_second": 100.0,
            "step_seconds": seconds,
            "data_wait_seconds": wait,
        }
        for number, step in enumerate(range(first, last + 1))
    ]


# The first job was killed in step 8 after saving step 5. The second finished.
EVENTS = [
    {"time": 1000.0, "kind": "launch"},
    {"time": 1010.0, "kind": "start"},
    {"time": 1020.5, "kind": "checkpoint", "step": 5, "seconds": 0.5},
    {"time": 1028.0, "kind": "worker-lost", "rank": 1, "code": -9},
    {"time": 1100.0, "kind": "launch"},
    {"time": 1105.0, "kind": "resume", "step": 5},
    {
        "time": 1120.0,
        "kind": "exit",
        "code": 0,
        "productive": 7.5,
        "data": 2.5,
        "validation": 1.0,
        "checkpoint": 2.0,
    },
]
RECORDS = [
    *step_records(1010.0, 1, 5),
    {"time": 1020.5, "step": 5, "checkpoint_seconds": 0.5},
    *step_records(1020.5, 6, 7),
    *step_records(1105.0, 6, 10),
    {"time": 1116.0, "step": 10, "validation/loss": 1.5},
]


def test_time_spent_adds_up_over_jobs():
    total = time_spent(job_times(EVENTS, RECORDS))
    # Killed job: 7 steps of 1.5 s work and 0.5 s wait, 2 of them repeated, then 3.5 s until it ended. Finished job: its
    # exit event.
    assert total.productive == pytest.approx(5 * 1.5 + 7.5)
    assert total.lost == pytest.approx(2 * 1.5 + 3.5)
    assert total.data == pytest.approx(7 * 0.5 + 2.5)
    assert total.checkpoint == pytest.approx(0.5 + 2.0)
    assert total.validation == pytest.approx(1.0)
    assert total.startup == pytest.approx(10.0 + 5.0)
    assert total.between_jobs == pytest.approx(1100.0 - 1028.0)
    assert total.unmeasured == pytest.approx(15.0 - 13.0)
    assert total.wall == pytest.approx(120.0)
    assert total.effective == pytest.approx(15.0 / 120.0)


def test_run_without_jobs_took_no_time():
    assert time_spent([]).wall == 0.0


def test_job_without_a_step_is_startup_time():
    events = [{"time": 10.0, "kind": "launch"}, {"time": 14.0, "kind": "worker-lost", "rank": 0, "code": 1}]
    total = time_spent(job_times(events, []))
    assert (total.startup, total.wall) == (4.0, 4.0)


def test_hang_counts_as_lost_time():
    events = [
        {"time": 0.0, "kind": "launch"},
        {"time": 10.0, "kind": "start"},
        {"time": 350.0, "kind": "hang", "rank": 1, "seconds": 300.0},
        {"time": 360.0, "kind": "launch"},
    ]
    total = time_spent(job_times(events, step_records(10.0, 1, 5, wait=0.0)))
    assert (total.productive, total.lost, total.unmeasured, total.between_jobs) == (10.0, 330.0, 0.0, 10.0)
    assert total.wall == 360.0


def test_record_of_ten_steps_is_partly_lost():
    events = [
        {"time": 0.0, "kind": "launch"},
        {"time": 1.0, "kind": "start"},
        {"time": 40.0, "kind": "launch"},
        {"time": 41.0, "kind": "resume", "step": 7},
    ]
    record = {"time": 21.0, "step": 10, "step_seconds": 2.0, "data_wait_seconds": 0.0}
    total = time_spent(job_times(events, [record]))
    assert (total.productive, total.lost) == (14.0, 6.0)


def test_return_to_an_earlier_job_loses_its_steps():
    events = [
        {"time": 0.0, "kind": "launch"},
        {"time": 1.0, "kind": "start"},
        {"time": 21.0, "kind": "exit", "code": 75, "productive": 20.0},
        {"time": 30.0, "kind": "launch"},
        {"time": 31.0, "kind": "resume", "step": 10},
        {"time": 51.0, "kind": "exit", "code": 75, "productive": 20.0},
        {"time": 60.0, "kind": "back", "step": 5, "from_step": 20},
        {"time": 61.0, "kind": "launch"},
        {"time": 62.0, "kind": "resume", "step": 5},
        {"time": 72.0, "kind": "exit", "code": 0, "productive": 10.0},
    ]
    records = [*step_records(1.0, 1, 10, wait=0.0), *step_records(31.0, 11, 20, wait=0.0)]
    total = time_spent(job_times(events, records))
    assert (total.productive, total.lost) == (20.0, 30.0)


def test_steps_of_a_killed_job_that_a_checkpoint_has_are_productive():
    """The last record of a killed job is of step 10, its last checkpoint of step 14."""
    events = [
        {"time": 0.0, "kind": "launch"},
        {"time": 1.0, "kind": "start"},
        {"time": 40.0, "kind": "worker-lost", "rank": 1, "code": -9},
        {"time": 41.0, "kind": "restart", "start": 2},
        {"time": 42.0, "kind": "resume", "step": 14},
    ]
    record = {"time": 21.0, "step": 10, "step_seconds": 2.0, "data_wait_seconds": 0.0}
    total = time_spent(job_times(events, [record]))
    assert (total.productive, total.lost, total.unmeasured) == (28.0, 11.0, 0.0)


def test_no_part_is_negative_after_a_clock_change():
    """Journals of older versions have such times, here between two jobs and during the second startup."""
    events = [
        {"time": 1000.0, "kind": "launch"},
        {"time": 1010.0, "kind": "start"},
        {"time": 1030.0, "kind": "worker-lost", "rank": 0, "code": -9},
        {"time": 400.0, "kind": "launch"},
        {"time": 300.0, "kind": "resume", "step": 5},
        {"time": 320.0, "kind": "exit", "code": 0, "productive": 10.0},
    ]
    total = time_spent(job_times(events, [*step_records(1010.0, 1, 8), *step_records(300.0, 6, 10)]))
    assert min(vars(total).values()) >= 0


def test_curve_uses_the_last_record_of_a_step():
    assert metric_curve([{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 1, "loss": 2.5}], "loss") == [
        (1, 2.5),
        (2, 2.0),
    ]


def test_falling_curve_goes_from_upper_left_to_lower_right():
    lines = [line.plain for line in draw_curves({"loss": [(1, 4.0), (10, 1.0)]}, width=20, height=6)]
    canvas = [line.split("│")[1] for line in lines[:6]]
    assert canvas[0][0] != " "
    assert canvas[5][19] != " "
    assert canvas[0][19] == canvas[5][0] == " "
    assert all(any(cell != " " for cell in line) for line in canvas)


def test_nonfinite_values_leave_gaps():
    assert draw_curves({"loss": [(1, float("inf"))], "empty": []})[0].plain == "no finite values yet"
    many = {name: [(1, 4.0), (10, 1.25)] for name in ("training", "validation", "baseline unigram", "baseline uniform")}
    legend = [line.plain for line in draw_curves(many, width=68)][16:]
    assert max(map(len, legend)) <= 78
    assert " ".join(" ".join(legend).split()) == " ".join(f"● {name} 1.25" for name in many)
    lines = draw_curves({"loss": [(1, 2.0), (2, float("nan")), (3, 2.0)]}, width=10, height=4)
    assert "nan" not in "".join(line.plain for line in lines)


def test_baselines_are_horizontal_lines():
    records = [{"step": 1, "loss": 5.0}, {"step": 9, "loss": 3.0}, {"step": 9, "baseline/unigram": 4.0}]
    assert loss_curves(records)["baseline unigram"] == [(1, 4.0), (9, 4.0)]


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(load_config(TINY)))
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return run


def test_report_shows_progress_and_saves_the_picture(run):
    screen = io.StringIO()
    picture = report_run(run, console=Console(width=80, file=screen))
    text = screen.getvalue()
    assert "gpt2/custom, causal-lm; step 10 of 300 in 2 jobs" in text
    assert "validation 1.5" in text
    assert "120.0" in text
    assert picture == run / "report/loss.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert max(map(len, text.splitlines()[:-1])) <= 80


@pytest.mark.parametrize(
    ("weights_only", "retained"),
    [
        (False, "weights, moments, read position, schedule and history; its run in trackers is new"),
        (True, "only the weights; moments, read position, steps and history are new"),
    ],
)
def test_report_says_from_which_run_a_branch_comes(run, weights_only, retained):
    """The branch of a branch names the run from which it comes itself."""
    branches = [
        {"time": 1.0, "kind": "branch", "step": 8, "run": "runs/first", "weights_only": not weights_only},
        {"time": 2.0, "kind": "branch", "step": 9, "run": "runs/second", "weights_only": weights_only},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in [*branches, *EVENTS]))
    screen = io.StringIO()
    report_run(run, console=Console(width=200, file=screen))
    assert screen.getvalue().splitlines()[1] == f"branch of runs/second at step 9: keeps {retained}"
    assert f"branch of runs/second at step 9: keeps {retained}" in "".join(run_page(History.read(run), []))


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        ("nowhere:MINE", "nowhere:MINE"),
        ("{ours: {task: 'nowhere:MINE', share: 1}, causal-lm: {share: 1}}", "ours+causal-lm"),
    ],
)
def test_report_without_the_code_of_the_objective(run, objective, name):
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"objective": yaml.safe_load(objective)}
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    screen = io.StringIO()
    report_run(run, console=Console(width=80, file=screen))
    assert f"gpt2/custom, {name}; step 10 of 300" in screen.getvalue()


@pytest.mark.parametrize("name", [r"[red]$\nosuch$", "[bold]x", "a\x1b[2Jb", "$", "_$x^$"])
def test_report_prints_special_characters_literally(run, name):
    named = run.rename(run.with_name(name))
    lines = [json.loads(line) for line in (named / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {f"loss/{name}": 1.0, f"baseline/{name}": 2.0}
    (named / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    console = Console(width=200, file=io.StringIO())
    assert report_run(named, console=console).is_file()
    assert console.file.getvalue().startswith(f"{printable(name)}: gpt2/custom, causal-lm; step 10 of 300")
    assert "\x1b" not in console.file.getvalue()


def test_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not the folder of a run"):
        report_run(tmp_path)


def test_run_without_metrics_is_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config_to_yaml(load_config(TINY)))
    with pytest.raises(UserError, match="has no metrics yet"):
        report_run(run)


def test_ticks_of_a_small_range_are_distinct():
    lines = draw_curves({"loss": [(step, 2.0 + step * 1e-4) for step in range(10)]}, width=20)
    ticks = [line.plain.split("│")[0].strip() for line in lines if "│" in line.plain]
    shown = [tick for tick in ticks if tick]
    assert len(shown) == len(set(shown)) > 3


def test_picture_shows_each_of_several_losses():
    def labels(records):
        return [axes.get_ylabel() for axes in plot_curves(records, title="run").axes]

    assert labels(RECORDS) == ["loss (nats a token)", "learning rate", "tokens/s"]
    several = [
        {**record, "loss/mlm": 1.0, "loss/replaced-token": 0.5} if "loss" in record else record for record in RECORDS
    ]
    several[-1] = {**several[-1], "validation/mlm": 1.1, "validation/replaced-token": 0.6}
    figure = plot_curves(several, title="run")
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "loss (weighted sum)",
        "mlm (nats)",
        "replaced-token (nats)",
        "learning rate",
        "tokens/s",
    ]
    assert [line.get_ydata()[-1] for line in figure.axes[1].get_lines()] == [1.0, 1.1]

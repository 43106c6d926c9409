"""Output of a run in a pipe and on a terminal of 80 columns, and the commands printed at its end."""

import os
import pty
import re
import shlex
import subprocess
import sys
import termios

import pytest
from click.testing import CliRunner

from megaptm.commands.generate import generate_command
from megaptm.config import load_config
from megaptm.launch.ray.supervisor import launch_command
from megaptm.report.terminal import (
    STARTED_BY,
    describe_resume,
    describe_start,
    format_duration,
    layout_title,
    next_commands,
    run_title,
)
from megaptm.shell import command_line, typed_path
from megaptm.tokenizers import load_tokenizer, train_tokenizer_on_texts
from tests.train.runs import CONFIGS, build, save_untrained, settings, write_text

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PATH = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "PATH": PATH}


def test_format_duration():
    assert [format_duration(seconds) for seconds in (0, 7.4, 61, 3723, 90061)] == [
        "0:00",
        "0:07",
        "1:01",
        "1:02:03",
        "1d 01:01:01",
    ]


def test_title_has_precision_layout_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layout = ["layout.data=2", "layout.tensor=2", "layout.sequence_parallel=true"]
    config = load_config(CONFIGS / "gpt2/tiny.yaml", [*layout, "model.vocabulary=4096"])
    assert run_title(config).splitlines() == [
        "gpt2/custom, 1,334,016 parameters, fp32; 4 processes: layout data=2 tensor=2 sequence_parallel",
        "run folder runs/gpt2-tiny",
    ]
    assert layout_title(load_config(CONFIGS / "gpt2/tiny.yaml").layout.model_dump()) == "data=1"


def test_start_line_names_the_initial_weights():
    config = load_config("gpt2/tiny")
    assert describe_start(config, imported=False) == "starts at step 0"
    assert describe_start(config, imported=True) == "starts at step 0 with the imported weights in the run folder"
    other = load_config("gpt2/tiny", ["train.init_from=runs/first"])
    assert describe_start(other, imported=False) == "starts at step 0 with the weights of runs/first"


def test_resume_line_names_step_and_layout():
    config = load_config(CONFIGS / "gpt2/tiny.yaml", ["layout.pipeline=2"])
    assert describe_resume(20, {"data": 2}, config) == "continues from step 20, layout data=2 -> pipeline=2"
    assert describe_resume(20, {"pipeline": 2}, config) == "continues from step 20, layout pipeline=2"
    assert describe_resume(20, {"pipeline": 2, "layers_per_stage": [3, 1]}, config) == (
        "continues from step 20, layout pipeline=2 layers_per_stage=[3,1] -> pipeline=2"
    )
    assert describe_resume(300, {"data": 2}, config) == (
        "all 300 steps are done; train.steps=600 optimizer.decay_steps=300 continues the run"
    )
    for step, ending in (
        (19, "; this job ends at step 20 (train.stop_at)"),
        (20, "; train.stop_at (20) is past, the run ends at step 300"),
    ):
        config = load_config(CONFIGS / "gpt2/tiny.yaml", ["layout.pipeline=2", "train.stop_at=20"])
        assert (
            describe_resume(step, {"pipeline": 2}, config) == f"continues from step {step}, layout pipeline=2{ending}"
        )


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Return a function that builds the corpus of a family, once per tokenizer."""
    folder, built = tmp_path_factory.mktemp("corpora"), {}
    text = write_text(folder / "text")

    def of(family):
        same = {"unilm": "bert", "electra": "bert"}.get(family, family)
        if same not in built:
            built[same] = build(text, folder / same, same)
        return built[same]

    return of


@pytest.mark.parametrize(
    ("family", "objective", "last"),
    [
        ("gpt2", None, "generate"),
        ("gpt2", "{prefix-lm: {joined: true, share: 1}, causal-lm: {share: 1}}", "generate"),
        ("bert", None, "generate"),
        ("bert", "{masked-lm: {}, sentence-order: {}}", "generate"),
        ("bert", "{token-document: {}}", "export"),
        ("electra", None, "generate"),
        ("unilm", None, "generate"),
        ("t5", None, "generate"),
        ("t5", "{prefix-lm: {}}", "generate"),
        ("t5", "{masked-text: {share: 1}, span-corruption: {share: 1}}", "generate"),
        ("bart", None, "generate"),
        ("transformer", None, "generate"),
    ],
)
def test_next_commands_can_be_pasted(family, objective, last, corpora, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, corpus = tmp_path / "runs" / "it's #1; $HOME", corpora(family)
    run.parent.mkdir()
    save_untrained(family, run.parent / "1", corpus, *([f"objective={objective}"] if objective else []))
    (run.parent / "1").rename(run)
    config, tokenizer = (
        load_config(run / "config.yaml").model_copy(update={"run": str(run)}),
        load_tokenizer(run / "tokenizer"),
    )
    done, stopped = (next_commands(config, tokenizer, done=done) for done in (True, False))
    program = len(shlex.split(command_line([])))
    words = [shlex.split(line)[program:] for line in (*done, *stopped)]
    assert [line[0] for line in words] == ["report", "evaluate", last, "train", "report", "evaluate"]
    assert all("runs/it's #1; $HOME" in line for line in words)
    on_ray = next_commands(config, tokenizer, done=False, start=launch_command(None))
    assert shlex.split(on_ray[0])[program:] == ["launch", "ray", "runs/it's #1; $HOME"]
    there = next_commands(config, tokenizer, done=False, start=launch_command("10.0.0.1:6379"))
    assert shlex.split(there[0])[program:] == ["launch", "ray", "--address", "10.0.0.1:6379", "runs/it's #1; $HOME"]
    if last == "generate":
        result = CliRunner().invoke(generate_command, [*words[2][1:], "--tokens", "3"], catch_exceptions=False)
        assert result.exit_code == 0
        assert result.output.strip()


@pytest.mark.parametrize(("family", "form"), [("elmo", "elmo"), ("word2vec", "words"), ("vit", "hf")])
def test_next_command_exports_models_that_generate_nothing(family, form):
    tokenizer = train_tokenizer_on_texts("words", ["a few words"], vocabulary=20)
    *_, last = next_commands(load_config(CONFIGS / family / "tiny.yaml"), tokenizer, done=True)
    assert shlex.split(last)[len(shlex.split(command_line([]))) :][:2] == ["export", form]


def test_missing_export_is_not_suggested():
    tokenizer = train_tokenizer_on_texts("wordpiece", ["a few words"], vocabulary=60)
    contrast = "objective={cross-modal-contrast: {regions: 9, features: 24, classes: 17}}"
    lines = next_commands(load_config(CONFIGS / "unimo/tiny.yaml", [contrast]), tokenizer, done=True)
    assert [shlex.split(line)[len(shlex.split(command_line([]))) :][0] for line in lines] == ["report", "evaluate"]


def test_paths_are_shown_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [typed_path(path) for path in (tmp_path / "a/b", "a/b", "/elsewhere/b")] == ["a/b", "a/b", "/elsewhere/b"]


def test_exit_skips_the_destruction_of_modules():
    """With torch, destruction takes seconds, in which the shell prompt does not return."""
    code = (
        "import atexit; from megaptm.processes import end_now\n"
        "class Slow:\n    def __del__(self): print('taken apart')\n"
        "slow = Slow(); atexit.register(print, 'left'); print('done', end=' '); end_now(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "done left\n")


@pytest.fixture
def corpus(corpora):
    return corpora("gpt2")


def command(folder, corpus, *more):
    return [
        sys.executable,
        "-m",
        "megaptm",
        "train",
        *settings("gpt2", folder / "a run", corpus, "train.batch=4", *more),
    ]


def test_output_in_a_pipe_and_on_a_terminal(tmp_path, corpus):
    steps = ("train.log_every=1", "train.validate_batches=1")
    first = run_in_pipe(tmp_path, command(tmp_path, corpus, *steps, "train.steps=2"))
    phases = [line.split(" s  ", 1)[1] for line in first if re.match(r" +\d+\.\d s  (?!warning: )", line)]
    assert phases[0] == "loading PyTorch and megatron-core"
    assert phases[1] == "joining 1 process"
    assert phases[2] == "opening the corpora"
    assert phases[3].startswith("building the model (")
    assert " of the decoder: fused, " in phases[4]
    assert phases[5:] == ["looking for a checkpoint", "starts at step 0"]
    assert [line.split("  ")[0] for line in first if "  loss " in line] == ["step 1/2", "step 2/2"]
    assert first[-4:] == [
        "next:",
        "  megaptm report 'a run'",
        "  megaptm evaluate 'a run'",
        "  megaptm generate 'a run' --prompt The",
    ]

    screen = run_on_terminal(
        tmp_path, command(tmp_path, corpus, *steps, "train.steps=4", "layout.distributed_optimizer=true")
    )
    assert "continues from step 2, layout data=1 -> data=1 distributed_optimizer" in screen
    assert "training ━" in screen
    assert "4/4 loss" in screen
    progress_lines = [part for line in screen.splitlines() for part in line.split("\r") if "training" in part]
    assert max(map(len, progress_lines)) <= 80
    assert screen.rstrip().splitlines()[-4] == "next:"

    last = run_in_pipe(tmp_path, command(tmp_path, corpus, *steps, "train.steps=4"))
    assert any(line.endswith("all 4 steps are done; train.steps=8 continues the run") for line in last)
    pasted = subprocess.run(
        last[-3].strip(), shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert "step 4 of 4 in 3 jobs" in pasted.stdout, pasted.stderr


def test_stopped_run_prints_the_command_of_its_launcher(tmp_path, corpus):
    environment = {**ENVIRONMENT, STARTED_BY: shlex.join(launch_command("10.0.0.1:6379"))}
    words = command(tmp_path, corpus, "train.log_every=1", "train.steps=1000000")
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as run:
        while not (line := run.stdout.readline()).startswith("step "):
            assert line
        run.terminate()
        output = run.stdout.read()
    assert run.returncode == 75
    assert "next:\n  megaptm launch ray --address 10.0.0.1:6379 'a run'\n" in output


def run_in_pipe(folder, words):
    ended = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.rstrip().splitlines()


def run_on_terminal(folder, words):
    """Run a command on a terminal of 80 columns; return its output without colors."""
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with subprocess.Popen(words, cwd=folder, env=ENVIRONMENT, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        sent = bytearray()
        while part := read(controller):
            sent += part
    os.close(controller)
    assert process.returncode == 0, sent
    return ESCAPE.sub("", sent.decode()).replace("\r\n", "\n")


def read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports a closed other end like this
        return b""

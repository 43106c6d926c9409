"""The command line as a process: output and exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests import ROOT
from tests.commands import all_commands

TINY = str(ROOT / "configs/gpt2/tiny.yaml")
COMMANDS = [
    ["corpus"],
    ["corpus", "build"],
    ["corpus", "inspect"],
    ["corpus", "verify"],
    ["tokenizer"],
    ["tokenizer", "train"],
    ["train"],
    ["launch", "ray"],
    ["evaluate"],
    ["generate"],
    ["export"],
    ["export", "hf"],
    ["import"],
    ["import", "hf"],
    ["report"],
    ["watch"],
    ["config"],
    ["config", "keys"],
    ["config", "show"],
]


def megaptm(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "megaptm", *arguments], capture_output=True, text=True, check=False, cwd=cwd, timeout=120
    )


def test_help_imports_nothing_heavy():
    source = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from megaptm.__main__ import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'ray', 'mlflow', 'pydantic', 'numpy', 'rich', 'yaml', 'transformers', 'matplotlib'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [["generate", "/nowhere", "--prompt", "The"], ["evaluate", "/nowhere"]])
def test_invalid_folder_fails_before_pytorch_is_loaded(command):
    source = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from megaptm.__main__ import main\n"
        f"told = CliRunner().invoke(main, {command!r})\n"
        "assert told.exit_code and 'correct the path' in told.output, told\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example(command):
    done = megaptm(*command, "--help")
    assert done.returncode == 0
    assert f"\n  megaptm {' '.join(command)} " in done.stdout.replace("    megaptm", "  megaptm")


def test_examples_of_the_main_help_are_commands():
    from megaptm.__main__ import main

    shown = [line.split()[1] for line in megaptm("--help").stdout.splitlines() if line.startswith("    megaptm ")]
    assert len(shown) >= 4
    assert set(shown) <= set(main.commands)


def test_ctrl_c_exits_with_130():
    from megaptm.__main__ import Commands

    @click.group(cls=Commands)
    def program() -> None: ...

    @program.command()
    def wait() -> None:
        raise KeyboardInterrupt

    done = CliRunner().invoke(program, ["wait"])
    assert (done.exit_code, done.output) == (130, "Interrupted.\n")


def test_bash_completion():
    """The README shows this completion."""
    script = """
        eval "$(_MEGAPTM_COMPLETE=bash_source megaptm)"
        COMP_WORDS=(megaptm evaluate --r) COMP_CWORD=2
        _megaptm_completion megaptm
        COMP_WORDS=(megaptm ev) COMP_CWORD=1
        _megaptm_completion megaptm
        COMP_WORDS=(megaptm train tiny.yaml train.st) COMP_CWORD=3
        _megaptm_completion megaptm
        COMP_WORDS=(megaptm families gpt3) COMP_CWORD=2
        _megaptm_completion megaptm
        COMP_WORDS=(megaptm plan tiny.yaml --machine h1) COMP_CWORD=4
        _megaptm_completion megaptm
        echo "${COMPREPLY[@]}"
    """
    assert '`eval "$(_MEGAPTM_COMPLETE=bash_source megaptm)"`' in (ROOT / "README.md").read_text()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == (
        "--rows evaluate train.steps= train.stragglers= train.stop= train.stop_at= train.stragglers.factor= "
        "train.stragglers.intervals= train.stop.metric= train.stop.patience= "
        "train.stop.min_delta= gpt3 gpt3-banded h100-80g\n",
        "",
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train.stpes=1"], "unknown key train.stpes; did you mean train.steps?"),
        (["layout.tensor=3"], "layout.tensor (3) must divide the 4 attention heads of gpt2/custom."),
        (["layout.pipeline=5"], "layout.pipeline (5) must be at most the 4 layers of gpt2/custom."),
    ],
)
def test_config_error_leaves_no_run_folder(tmp_path, overrides, message):
    done = megaptm("train", TINY, f"run={tmp_path / 'run'}", *overrides)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_more_processes_than_the_layout_needs_are_refused(tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    done = megaptm("train", TINY, f"run={tmp_path / 'run'}", "layout.data=2")
    assert done.returncode == 2
    assert "4 processes are more than the 2 the layout needs" in done.stderr
    assert not (tmp_path / "run").exists()


def test_folder_without_a_run_is_refused(tmp_path):
    done = megaptm("report", str(tmp_path))
    assert done.returncode == 2
    assert "is not the folder of a run" in done.stderr
    assert megaptm("train", str(tmp_path)).returncode == 2


def test_from_text_to_shards(tmp_path):
    (tmp_path / "books").mkdir()
    for number in range(20):
        (tmp_path / f"books/{number}.txt").write_text(f"This is book {number}. It tells of {number} things.\n" * 20)
    done = megaptm(
        *("corpus", "build", "books", "out=corpus", "tokenizer.vocabulary=300", "validation=0.2"), cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert megaptm("corpus", "verify", "corpus", cwd=tmp_path).returncode == 0
    shard = tmp_path / "corpus/train-000000.tar"
    content = bytearray(shard.read_bytes())
    content[700] ^= 1
    shard.write_bytes(content)
    damaged = megaptm("corpus", "verify", "corpus", cwd=tmp_path)
    assert damaged.returncode == 1
    assert "train-000000.tar" in damaged.stdout


def test_build_error_is_one_sentence(tmp_path):
    done = megaptm("corpus", "build", "nowhere", "out=corpus", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def test_build_without_out_is_refused(tmp_path):
    done = megaptm("corpus", "build", "nowhere", cwd=tmp_path)
    assert done.returncode == 2
    assert "add out=corpora/NAME" in done.stderr


def test_mistyped_family_suggests_the_nearest():
    done = megaptm("families", "gtp2")
    assert done.returncode == 2
    assert done.stderr == "error: unknown family gtp2; did you mean gpt2?\n"


def test_families_list_reads_no_configs(monkeypatch):
    """Reading hundreds of configs took seconds without any output."""
    from megaptm.__main__ import main

    monkeypatch.setattr("megaptm.config.read.read_yaml_file", None)
    assert "gpt3-banded: decoder" in CliRunner().invoke(main, ["families"], catch_exceptions=False).output


def test_json_has_null_for_nan_and_infinity(capsys):
    """Python's own JSON writer prints `Infinity` and `NaN`, which other readers reject."""
    from megaptm.__main__ import main
    from megaptm.commands.output import print_json

    print_json({"limit": float("inf"), "step": (1.5, float("nan")), "nodes": {"1": None}})
    parsed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert parsed == {"limit": None, "step": [1.5, None], "nodes": {"1": None}}
    for words, command in all_commands(main):
        if "--json" in [name for option in command.get_params(click.Context(command)) for name in option.opts]:
            assert command.callback.__globals__.get("print_json") is print_json, words


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "run", "--prompt=a", "--temperature=nan"],
        ["launch", "ray", TINY, "--wait=inf"],
        ["corpus", "retrieve", "a", "--out=b", "--threshold=nan"],
    ],
)
def test_invalid_numeric_options_are_refused(words):
    done = megaptm(*words)
    assert done.returncode == 2
    assert "is not a finite number" in done.stderr


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["trian"], "no command trian; did you mean megaptm train?"),
        (["finetune"], "no command finetune; to start from the weights of another run set train.init_from=RUN_FOLDER"),
        (["resume"], "no command resume; the same command again"),
        (["tokenize"], "no command tokenize; did you mean megaptm corpus build?"),
        (["slurm"], "no command slurm; did you mean megaptm launch slurm?"),
        (["checkpoint", "delete"], "no command delete; did you mean megaptm checkpoint prune?"),
        (["corpus", "bild"], "no command bild; did you mean megaptm corpus build?"),
        (["--verison"], "megaptm has no option --verison; did you mean --version?"),
        (["train", "x", "--dry-run"], "megaptm train has no option --dry-run; `megaptm check CONFIG` finds"),
        (["train", "x", "--steps=3"], "no option --steps; settings are written without dashes: train.steps=VALUE."),
        (["train", "x", "--train.steps=3"], "settings are written without dashes: train.steps=VALUE."),
        (["train", "x", "--hidden-size=3"], "settings are written without dashes: model.width=VALUE."),
        (["train", "--config", "x"], "write the value alone: megaptm train [OPTIONS] CONFIG [KEY=VALUE]..."),
        (["corpus", "build", "x", "--out=y"], "settings are written without dashes: out=VALUE."),
        (
            ["corpus", "build", "x", "--vocab-size=3"],
            "settings are written without dashes: tokenizer.vocabulary=VALUE.",
        ),
        (["generate", "x", "--max-new-tokens=3"], "did you mean --tokens?"),
        (["generate", "x", "--zzz"], "megaptm generate has no option --zzz; it has --prompt, --tokens"),
        (["families", "mixtral"], "unknown family mixtral; docs/add-a-family.md shows"),
        (["config", "keys", "wsd"], "no key wsd; for warm-up, stable, decay set optimizer.warmup_steps"),
        (["config", "show", TINY, "context_parallel=2"], "layout.context divides sequences over ranks"),
        (["config", "show", TINY, "train.gradient_accumulation=2"], "set train.batch and layout.microbatch"),
        (["config", "show", TINY, "optimizer.decay=wsd"], "set optimizer.warmup_steps, optimizer.stable_steps"),
        (["config", "show", TINY, "output_dir=x"], "unknown key output_dir; did you mean run?"),
        (["config", "show", TINY, "dp=2"], "unknown key dp; did you mean layout.data?"),
        (["export", "huggingface", "a", "b"], "no command huggingface; did you mean megaptm export hf?"),
        ([TINY], f"no command {TINY}; did you mean megaptm train {TINY}?"),
        (
            ["config", "show", TINY, "parallelism.tensor_parallel_degree=2"],
            "unknown key parallelism.tensor_parallel_degree; did you mean layout.tensor?",
        ),
        (
            ["corpus", "build", "x", "out=y", "vocab_size=3"],
            "unknown setting vocab_size; did you mean tokenizer.vocabulary?",
        ),
    ],
    ids=lambda value: " ".join(value).removeprefix("config show ") if isinstance(value, list) else "",
)
def test_unknown_words_get_a_remedy(words, remedy):
    from megaptm.__main__ import main

    done = CliRunner().invoke(main, words, prog_name="megaptm")
    assert done.exit_code == 2
    assert remedy in done.stderr
    assert done.stderr.startswith("error: ")

"""The installed wheel finds its configs, machines and scripts by name."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests import ROOT

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
TREE = ("megaptm", "data_pipeline", "configs", "slurm", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Run `megaptm WORDS` of the installed wheel in an empty folder."""
    folder = tmp_path_factory.mktemp("wheel")
    source, target, empty = folder / "source", folder / "target", folder / "empty"
    empty.mkdir()
    source.mkdir()
    for name in TREE:  # the build leaves files in its folder
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    alone = ("--no-index", "--no-deps")
    subprocess.run([*PIP, "wheel", *alone, "--no-build-isolation", f"--wheel-dir={folder}", str(source)], check=True)
    [wheel] = folder.glob("megaptm-*.whl")
    subprocess.run([*PIP, "install", *alone, f"--target={target}", str(wheel)], check=True)

    def run(*words, module="megaptm", **environment):
        environment = {**os.environ, "PYTHONPATH": str(target), **environment}
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, timeout=240)

    run.target = target
    return run


def test_wheel_has_all_shipped_files_once(installed):
    for name, pattern in (("configs", "*.*"), ("slurm", "*.sh")):
        checkout_files = {str(path.relative_to(ROOT / name)) for path in (ROOT / name).rglob(pattern) if path.is_file()}
        wheel_files = installed.target / "megaptm/shipped" / name
        assert {
            str(path.relative_to(wheel_files)) for path in wheel_files.rglob("*") if path.is_file()
        } == checkout_files
    assert (installed.target / "data_pipeline/clean/connectives.tsv").is_file()
    assert {path.name for path in installed.target.iterdir()} - {"bin"} == {
        *("megaptm", "data_pipeline", f"megaptm-{version()}.dist-info"),
    }


def version():
    return re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]


@pytest.mark.parametrize("config", ["gpt3/175b", "configs/gpt3/175b.yaml", "gpt3/175b.yaml"])
def test_plan_finds_shipped_config(installed, config):
    done = installed("plan", config, "--machine", "h100-80g")
    assert done.returncode == 0, done.stderr
    assert "174,604,259,328 parameters" in done.stdout


def test_job_script_is_found(installed, real_corpus, tmp_path):
    words = [f"run={tmp_path / 'run'}", f"data.mix={{{real_corpus('byte-bpe')}: 1}}", "model.vocabulary=512"]
    shown = installed("launch", "slurm", "gpt2/tiny", *words, "--dry-run", PATH="/nonexistent")
    assert shown.returncode == 0, shown.stderr
    assert 'source "${MEGAPTM_HOME:-$SLURM_SUBMIT_DIR}/slurm/common.sh"' in shown.stdout
    source = "import megaptm.launch.slurm.request as request; print(request.checkout_folder())"
    checkout_folder = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": str(installed.target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert checkout_folder.stdout.strip() == str(installed.target / "megaptm/shipped")
    assert (installed.target / "megaptm/shipped/slurm/common.sh").is_file()


@pytest.mark.parametrize("command", [["plan"], ["train"], ["check"], ["launch", "slurm"]], ids=" ".join)
def test_mistyped_name_suggests_the_nearest(installed, command):
    done = installed(*command, "gpt3/175B")
    assert done.returncode == 2
    message = " ".join((done.stdout + done.stderr).split())
    assert "gpt3/175B: no such config file, and none of that name; did you mean gpt3/175b?" in message

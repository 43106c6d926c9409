"""Container recipes: their packages can be installed beside the torch of NVIDIA's image, and both recipes are equal."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from megaptm.check.software import check_versions, installed_versions
from tests import ROOT

DOCKERFILE = (ROOT / "cluster/Dockerfile").read_text(encoding="utf-8")
APPTAINER = (ROOT / "cluster/megaptm.def").read_text(encoding="utf-8")
TORCH = {"25.10": "2.9.0a0+145a3a7bda.nv25.10", "25.12": "2.10.0a0+b4e4ee81d3.nv25.12"}
"""torch version by image, from NVIDIA's release notes. For a new image, look up its torch and add it."""
PYTHON = "3.12"


def pinned(recipe):
    [release] = re.findall(r"nvcr\.io/nvidia/pytorch:([\d.]+)-py3", "\n".join(re.findall(r"^[^#].*", recipe, re.M)))
    return release


def resolve(folder, torch):
    """Return uv's output for megaptm with this torch, which `folder` holds as an empty wheel."""
    about, folder = f"torch-{torch}.dist-info", folder / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"torch-{torch}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (folder / "torch.txt").write_text(f"torch=={torch}\n")
    extras = ("--extra=corpus", "--extra=hub", "--no-annotate", "--no-header", f"--python-version={PYTHON}")
    return uv("pip", "compile", "pyproject.toml", *extras, f"--constraint={folder}/torch.txt", f"--find-links={folder}")


def uv(*words, package=None):
    program = Path(sys.executable).with_name("uv")
    if not program.exists():
        pytest.skip("needs uv, which .ci/environment installs where it can be had")
    return subprocess.run([program, *words], cwd=ROOT, input=package, capture_output=True, text=True, timeout=300)


@pytest.fixture
def registry():
    """Skip if no package registry answers."""
    result = uv("pip", "compile", "-", "--no-header", package="megatron-core>=0.16.1,<0.17\n")
    if result.returncode:
        pytest.skip(f"no package registry answers: {result.stderr.strip().splitlines()[-1]}")


def test_requirements_resolve_with_the_torch_of_the_image(registry, tmp_path):
    done = resolve(tmp_path, TORCH[pinned(DOCKERFILE)])
    assert done.returncode == 0, done.stderr
    assert f"torch=={TORCH[pinned(DOCKERFILE)]}\n" in done.stdout


def test_image_with_too_old_torch_is_detected(registry, tmp_path):
    done = resolve(tmp_path, TORCH["25.10"])
    assert done.returncode
    assert "megaptm depends on torch>=2.9 and torch==2.9.0a0" in " ".join(done.stderr.split())


def test_both_recipes_are_equal():
    assert pinned(DOCKERFILE) == pinned(APPTAINER)
    copied = re.findall(r"^COPY (.+) /opt", DOCKERFILE, re.M)
    listed = re.findall(r"^    (\S+) /opt/megaptm/", APPTAINER, re.M)
    assert " ".join(copied).split() == listed
    assert all((ROOT / name).exists() for name in listed)
    for command in re.findall(r"^    ((?:pip|PIP|python) ?.*)$", APPTAINER, re.M):
        assert command in DOCKERFILE


@pytest.mark.parametrize("torch", TORCH.values())
def test_nvidia_torch_counts_as_its_release(torch):
    [finding] = check_versions({**installed_versions(), "torch": torch})
    assert (finding.state, torch in finding.message) == ("ok", True)


def test_too_old_nvidia_torch_needs_a_newer_image():
    [fault] = check_versions({**installed_versions(), "torch": "2.8.0a0+5228986c39.nv25.06"})
    assert fault.message == (
        "torch is 2.8.0a0+5228986c39.nv25.06, megaptm needs >=2.9: use a newer NVIDIA image; its other libraries do "
        "not work with another build."
    )
    [fault] = check_versions({**installed_versions(), "torch": "2.9.0a0+gitc1e5ed4"})
    assert "pip install 'torch>=2.9'" in fault.message

"""The container recipes: what they put beside the torch of NVIDIA's image can be resolved, and they say the same."""

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
"""Of images, by NVIDIA's release notes. An image that is not here: look its torch up, and add it."""
PYTHON = "3.12"


def pinned(recipe):
    [release] = re.findall(r"nvcr\.io/nvidia/pytorch:([\d.]+)-py3", "\n".join(re.findall(r"^[^#].*", recipe, re.M)))
    return release


def resolve(folder, torch):
    """What uv says of megaptm beside this torch, which stands in `folder` as a wheel without content."""
    about, folder = f"torch-{torch}.dist-info", folder / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / f"torch-{torch}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (folder / "torch.txt").write_text(f"torch=={torch}\n")
    extras = ("--extra=corpus", "--extra=hub", "--no-annotate", "--no-header", f"--python-version={PYTHON}")
    return uv("pip", "compile", "pyproject.toml", *extras, f"--constraint={folder}/torch.txt", f"--find-links={folder}")


def uv(*words, given=None):
    program = Path(sys.executable).with_name("uv")
    if not program.exists():
        pytest.skip("needs uv, which .ci/environment installs where it can be had")
    return subprocess.run([program, *words], cwd=ROOT, input=given, capture_output=True, text=True, timeout=300)


@pytest.fixture
def registry():
    """Skips where no registry of packages answers."""
    found = uv("pip", "compile", "-", "--no-header", given="megatron-core>=0.16.1,<0.17\n")
    if found.returncode:
        pytest.skip(f"no package registry answers: {found.stderr.strip().splitlines()[-1]}")


def test_all_that_is_needed_can_be_installed_beside_the_images_torch(registry, tmp_path):
    done = resolve(tmp_path, TORCH[pinned(DOCKERFILE)])
    assert done.returncode == 0, done.stderr
    assert f"torch=={TORCH[pinned(DOCKERFILE)]}\n" in done.stdout


def test_an_image_whose_torch_pip_counts_as_too_old_is_seen_to_be(registry, tmp_path):
    done = resolve(tmp_path, TORCH["25.10"])
    assert done.returncode
    assert "megaptm depends on torch>=2.9 and torch==2.9.0a0" in " ".join(done.stderr.split())


def test_the_two_recipes_do_the_same():
    assert pinned(DOCKERFILE) == pinned(APPTAINER)
    copied = re.findall(r"^COPY (.+) /opt", DOCKERFILE, re.M)
    listed = re.findall(r"^    (\S+) /opt/megaptm/", APPTAINER, re.M)
    assert " ".join(copied).split() == listed
    assert all((ROOT / name).exists() for name in listed)
    for command in re.findall(r"^    ((?:pip|PIP|python) ?.*)$", APPTAINER, re.M):
        assert command in DOCKERFILE


@pytest.mark.parametrize("torch", TORCH.values())
def test_a_torch_of_nvidias_counts_as_the_release_that_it_is_built_of(torch):
    [good] = check_versions({**installed_versions(), "torch": torch})
    assert (good.state, torch in good.message) == ("ok", True)


def test_a_torch_of_nvidias_that_is_too_old_is_not_to_be_replaced_alone():
    [fault] = check_versions({**installed_versions(), "torch": "2.8.0a0+5228986c39.nv25.06"})
    assert fault.message == (
        "torch is 2.8.0a0+5228986c39.nv25.06, megaptm needs >=2.9: use a newer NVIDIA image; its other libraries do "
        "not work with another build."
    )
    [fault] = check_versions({**installed_versions(), "torch": "2.9.0a0+gitc1e5ed4"})
    assert "pip install 'torch>=2.9'" in fault.message

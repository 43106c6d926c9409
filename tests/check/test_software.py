"""Versions, fused libraries and GPU drivers: planted where Python and the shell look for them."""

import os
import subprocess
import sys

import pytest

from megaptm.check.software import fit, version, versions, wrong, wrong_build
from megaptm.schedulers.node_process import parse_facts

# What nvidia-smi prints, as far as it is read.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
    --query-gpu=*) echo "NVIDIA H200, 143771 MiB, 580.95.05"; echo "NVIDIA H200, 143771 MiB, 580.95.05" ;;
    *) echo "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0   |" ;;
esac
"""


@pytest.fixture
def node(tmp_path):
    """What a node says of itself that has these modules and programs besides: texts by path."""

    def ask(planted=None):
        for path, text in (planted or {}).items():
            place = tmp_path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            place.chmod(0o755)
        paths = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "megaptm.check.node"]
        done = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=True)
        return parse_facts(done.stdout)

    return ask


def test_what_is_installed_here_fits():
    [good] = fit(versions())
    assert good.state == "good"
    assert f"torch {version('torch')}" in good.says


def test_an_old_or_missing_library_is_named_with_what_is_needed():
    found = {name: own for name, own in versions().items() if name != "psutil"} | {"torch": "2.1.0"}
    assert [(fault.state, fault.says) for fault in fit(found)] == [
        ("fault", "torch is 2.1.0, megaptm needs >=2.9: pip install 'torch>=2.9'."),
        ("fault", "psutil is missing, megaptm needs >=6: pip install 'psutil>=6'."),
    ]


def test_this_machine_has_nothing_that_breaks_megatron(node):
    assert list(wrong(node(), "here")) == []


def test_an_apex_that_is_not_nvidias_is_called_out(node):
    [says] = wrong(node({"apex/__init__.py": "raise SystemExit('not to be imported')"}), "on node3")
    assert says == "The apex on node3 is PyPI's, not NVIDIA's, and breaks megatron-core: pip uninstall apex."


def test_nvidias_apex_is_found_and_said_to_lack_its_kernels(node):
    apex = {"apex/__init__.py": "", "apex/optimizers/__init__.py": ""}
    [says] = wrong(node(apex), "here")
    assert says.startswith("NVIDIA's apex here has no kernels (amp_C)")
    assert node({**apex, "amp_C.py": ""})["fused"]["NVIDIA apex"] == "found"


def test_a_transformer_engine_that_cannot_be_imported_is_a_fault(node):
    raising = {"transformer_engine/__init__.py": "raise RuntimeError('cudnn shared object not found')"}
    [says] = wrong(node(raising), "here")
    assert "cannot be imported (RuntimeError: cudnn shared object not found), and stops megatron-core" in says


def test_a_transformer_engine_that_can_is_found(node):
    package = {"transformer_engine/__init__.py": "", "transformer_engine/pytorch.py": ""}
    assert node(package)["fused"]["Transformer Engine"] == "found"


def test_gpus_and_their_driver_are_told(node):
    told = node({"nvidia-smi": NVIDIA_SMI})
    assert told["gpus"] == ["NVIDIA H200 143771 MiB"] * 2
    assert (told["driver"], told["driver_cuda"]) == ("580.95.05", "13.0")


def test_torchs_build_must_fit_the_driver():
    gpus = {"gpus": ["NVIDIA H200 143771 MiB"], "driver": "550.54", "driver_cuda": "12.4"}
    [older] = wrong_build({**gpus, "torch_cuda": "13.0"}, "on node1")
    assert older == (
        "torch on node1 is built for CUDA 13.0 but the GPUs' driver 550.54 ends at CUDA 12.4: "
        "update the driver, or install torch's build for CUDA 12."
    )
    [without] = wrong_build({**gpus, "torch_cuda": None}, "here")
    assert without.startswith("torch here is built without CUDA though there are GPUs")
    assert list(wrong_build({**gpus, "torch_cuda": "12.8"}, "here")) == []
    assert list(wrong_build({**gpus, "gpus": [], "torch_cuda": None}, "here")) == []

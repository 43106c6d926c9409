"""Versions, fused libraries and GPU drivers, planted on the paths of Python and the shell."""

import os
import subprocess
import sys

import pytest

from megaptm.check.software import (
    check_versions,
    cuda_build_problems,
    installed_versions,
    package_version,
    software_problems,
)
from megaptm.schedulers.node_process import parse_facts

# The part of nvidia-smi's output that is read.
NVIDIA_SMI = """#!/bin/sh
case "$1" in
    --query-gpu=*) echo "NVIDIA H200, 143771 MiB, 580.95.05"; echo "NVIDIA H200, 143771 MiB, 580.95.05" ;;
    *) echo "| NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0   |" ;;
esac
"""


@pytest.fixture
def node(tmp_path):
    """Return the facts of this node with additional modules and programs: texts by path."""

    def facts(planted=None):
        for name, text in (planted or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        paths = {"PYTHONPATH": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = [sys.executable, "-m", "megaptm.check.node_facts"]
        done = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=True)
        return parse_facts(done.stdout)

    return facts


def test_installed_versions_are_ok():
    [finding] = check_versions(installed_versions())
    assert finding.state == "ok"
    assert f"torch {package_version('torch')}" in finding.message


def test_old_and_missing_libraries_are_faults():
    installed = {name: own for name, own in installed_versions().items() if name != "psutil"} | {"torch": "2.1.0"}
    assert [(fault.state, fault.message) for fault in check_versions(installed)] == [
        ("fault", "torch is 2.1.0, megaptm needs >=2.9: pip install 'torch>=2.9'."),
        ("fault", "psutil is missing, megaptm needs >=6: pip install 'psutil>=6'."),
    ]


def test_this_machine_has_no_software_problems(node):
    assert list(software_problems(node(), "here")) == []


def test_apex_of_pypi_is_a_fault(node):
    [message] = software_problems(node({"apex/__init__.py": "raise SystemExit('not to be imported')"}), "on node3")
    assert message == "The package apex on node3 is PyPI's, not NVIDIA's, and breaks megatron-core: pip uninstall apex."


def test_nvidia_apex_without_kernels_is_a_fault(node):
    apex = {"apex/__init__.py": "", "apex/optimizers/__init__.py": ""}
    [message] = software_problems(node(apex), "here")
    assert message.startswith("NVIDIA's apex here has no kernels (amp_C)")
    assert node({**apex, "amp_C.py": ""})["fused"]["NVIDIA apex"] == "found"


def test_broken_transformer_engine_is_a_fault(node):
    raising = {"transformer_engine/__init__.py": "raise RuntimeError('cudnn shared object not found')"}
    [message] = software_problems(node(raising), "here")
    assert "cannot be imported (RuntimeError: cudnn shared object not found) and breaks megatron-core" in message


def test_transformer_engine_is_found(node):
    package = {"transformer_engine/__init__.py": "", "transformer_engine/pytorch.py": ""}
    assert node(package)["fused"]["Transformer Engine"] == "found"


def test_gpus_and_driver_are_facts(node):
    facts = node({"nvidia-smi": NVIDIA_SMI})
    assert facts["gpus"] == ["NVIDIA H200 143771 MiB"] * 2
    assert facts["driver"] == "580.95.05"
    assert facts["driver_cuda"] == "13.0"


def test_torch_build_must_match_the_driver():
    gpus = {"gpus": ["NVIDIA H200 143771 MiB"], "driver": "550.54", "driver_cuda": "12.4"}
    [older] = cuda_build_problems({**gpus, "torch_cuda": "13.0"}, "on node1")
    assert older == (
        "torch on node1 is built for CUDA 13.0, but the GPU driver 550.54 supports up to CUDA 12.4: "
        "update the driver, or install torch's build for CUDA 12."
    )
    [without] = cuda_build_problems({**gpus, "torch_cuda": None}, "here")
    assert without.startswith("torch here is built without CUDA, but there are GPUs")
    assert list(cuda_build_problems({**gpus, "torch_cuda": "12.8"}, "here")) == []
    assert list(cuda_build_problems({**gpus, "gpus": [], "torch_cuda": None}, "here")) == []

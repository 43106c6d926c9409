"""Replacement of the CUDA driver."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session")
def guard(tmp_path_factory):
    """Compile the library that replaces the device."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C++ compiler on Linux: the package g++ of Debian and Ubuntu, gcc-c++ of Fedora")
    if torch.cuda.is_available():
        pytest.skip("pretends a GPU where there is none")
    guard = tmp_path_factory.mktemp("guard") / "guard.so"
    home = Path(torch.__file__).parent
    headers = [f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}"]
    source = Path(__file__).with_name("guard.cpp")
    libraries = [f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O0", "-std=c++20", abi, *headers, source, *libraries, "-o", guard], check=True
    )
    return guard


@pytest.fixture(scope="session")
def triton_path(tmp_path_factory) -> list[str]:
    """Return the folder of triton. torch for CPUs does not include it, and the test environment need not have its
    gigabyte."""
    if importlib.util.find_spec("triton") is not None:
        return []
    program, folder = Path(sys.executable).with_name("uv"), tmp_path_factory.mktemp("triton")
    if not program.exists():
        pytest.skip("needs the package triton, or uv to install it")
    words = ("pip", "install", "--quiet", f"--python={sys.executable}", f"--target={folder}", "triton")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the package triton, which no registry gave: {done.stderr.strip().splitlines()[-1]}")
    return [str(folder)]

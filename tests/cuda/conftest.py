"""Replacement of the CUDA driver."""

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

"""Virtual environments of peers, created once from PyPI, because their pins must not change megaptm's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "megaptm-benchmarks"
SCRIPTS = Path(__file__).parents[1] / "peers"


@dataclass(frozen=True)
class Environment:
    """Requirements of a peer, and imports that check them."""

    packages: tuple[str, ...]
    imports: str
    find_links: bool = True
    """Whether wheels of PIP_FIND_LINKS may be used, such as a torch without CUDA."""


ENVIRONMENTS = {
    "datatrove": Environment(("datatrove[processing]==0.10.1", "spacy", "orjson"), "datatrove, spacy, tokenizers"),
    "dolma": Environment(("dolma==1.2.1",), "dolma.taggers"),
    "energon": Environment(("torch==2.13.0", "megatron-energon==7.4.1"), "megatron.energon"),
    # torchvision must be built for the same torch: both come from PyPI.
    "streaming": Environment(("torch==2.13.0", "mosaicml-streaming==0.13.0"), "streaming", find_links=False),
}


def find_python(name: str, folder: Path) -> str | None:
    """Return the interpreter of a peer's environment, and create the environment if it is missing. Print a line and
    return None if that fails."""
    python = folder / name / "bin" / "python"
    environment = ENVIRONMENTS[name]
    try:
        if not (folder / name / "ready").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _uv("venv", "--clear", "--python", sys.executable, str(folder / name))
            links = os.environ.get("PIP_FIND_LINKS") if environment.find_links else None
            find_links = ["--find-links", links] if links else []
            _uv("pip", "install", "--python", str(python), *find_links, *environment.packages)
            _run([str(python), "-c", f"import {environment.imports}"])
            (folder / name / "ready").touch()
    except subprocess.CalledProcessError as error:
        print(f"{name} is skipped because its installation failed: {error.stderr.strip().splitlines()[-1:]}")
        return None
    return str(python)


def run_peer(python: str, script: str, **arguments: Any) -> dict[str, Any]:
    """Run a script of `peers/` with a JSON object as its argument; return the measurement in its last line."""
    output = _run([python, str(SCRIPTS / f"{script}.py"), json.dumps(arguments)])
    return json.loads(output.splitlines()[-1])


def _uv(*arguments: str) -> None:
    _run([sys.executable, "-m", "uv", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr or "no message")
    return done.stdout

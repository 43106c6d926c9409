"""Structure of the package in numbers: sizes, imports, and the files that `megaptm train` enters before its first step.

    python benchmarks/structure.py [--commit COMMIT]

The numbers are those of the working tree, or of a commit, which is unpacked into a temporary folder. A package is a
folder or a module directly under `megaptm/`, as in the table of imports (docs/architecture.md). Counted in `megaptm/`:

- folders, files, lines: folders with modules, modules, and their lines, with empty lines and comments
- largest package: lines of the largest package
- names twice: names of several public classes
- imports: pairs of packages of which one imports the other, also inside functions
- import statements: all statements with such an import
- files entered: files in which a function runs in the main thread of the command or of rank 0, until rank 0 enters
  `Engine.train_step` for the first time (tiny GPT-2, one process, new run). Code of imports is not counted.
- on the way: those of these files on the call stack when the command starts rank 0, and when rank 0 enters the step
- packages entered: packages of the files entered
- back edges: number of packages entered that import, directly or indirectly, the package entered before them
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

from common.options import Options

ROOT = Path(__file__).parent.parent
GOALS = {"names twice": 0, "files entered": 112, "on the way": 9, "packages entered": 30}
"""Limits; the other counts grow with the features of megaptm."""
# Every Python process with this folder on PYTHONPATH runs it first.
TRACER = '''
import os, sys
from importlib.util import find_spec
ROOT, OUT = os.environ["TRACE_ROOT"], os.environ["TRACE_OUT"]
entered = set()

def package_files(frame):
    """Return the files of functions on the stack, innermost first; None during an import."""
    files = []
    while frame is not None:
        code, name = frame.f_code, frame.f_code.co_filename
        if code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return None
        if name.startswith(ROOT):
            files.append(name[len(ROOT):])
        frame = frame.f_back
    return files

def write(kind, names):
    with open(OUT, "a") as file:
        file.writelines(f"{kind} {name}\\n" for name in names)

def enter(frame, event, argument):
    code = frame.f_code
    path = code.co_filename
    if not path.startswith(ROOT) or not code.co_flags & 1:
        return
    first_step = code.co_name == "train_step" and path == ROOT + "parallel/engine.py"
    if path in entered and not first_step:
        return
    if (stack := package_files(frame)) is None:
        return
    entered.add(path)
    write("entered", stack[:1])
    if first_step:
        sys.settrace(None)
        write("way", dict.fromkeys(reversed(stack)))

def start(event, arguments):
    if event == "subprocess.Popen" and "megaptm.train.worker" in arguments[1]:
        write("way", dict.fromkeys(reversed(package_files(sys._getframe()))))

if any(word in ("megaptm", "megaptm.train.worker") for word in sys.orig_argv):
    sys.addaudithook(start)
    os.register_at_fork(after_in_child=lambda: sys.settrace(None))
    # sys.setprofile would also report returns and C functions. This reports calls only, because `enter` returns None.
    sys.settrace(enter)
'''


def package(path: str) -> str:
    """Return `train` for `train/loop.py`, `errors` for `errors.py`."""
    return path.split("/")[0].removesuffix(".py")


def imports(module: ast.Module) -> list[str]:
    """Return the packages that a module imports, one per statement."""
    names = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "megaptm":
            names += [f"megaptm.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return [name.split(".")[1] for name in names if name.startswith("megaptm.")]


def enter(tree: Path, folder: Path) -> dict[str, list[str]]:
    """Return the files that a run of one step enters, and the call stacks on its way, in order."""
    (folder / "sitecustomize.py").write_text(TRACER, encoding="utf-8")
    plain = {**os.environ, "PYTHONPATH": str(tree)}
    traced = {"PYTHONPATH": f"{folder}:{tree}", "TRACE_ROOT": f"{tree}/megaptm/", "TRACE_OUT": str(folder / "trace")}

    def megaptm(*words: object, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "megaptm", *map(str, words)]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        if done.returncode:
            message = f"{' '.join(command)} failed with exit code {done.returncode}:"
            raise SystemExit(f"{message}\n{done.stdout}{done.stderr}")

    corpus = folder / "corpus"
    keys = {"out": corpus, "tokenizer.vocabulary": 512, "limit_bytes": 1_000_000, "workers": 0}
    megaptm("corpus", "build", "python-library", *(f"{key}={value}" for key, value in keys.items()), environment=plain)
    keys = {"run": folder / "run", "data.mix": json.dumps({str(corpus): 1}), "model.vocabulary": 512, "train.steps": 1}
    words = ["configs/gpt2/tiny.yaml", *(f"{key}={value}" for key, value in keys.items())]
    megaptm("train", *words, environment=plain | traced)
    lines = [line.split() for line in (folder / "trace").read_text(encoding="utf-8").splitlines()]
    return {kind: [name for line_kind, name in lines if line_kind == kind] for kind in ("entered", "way")}


def count(tree: Path, folder: Path) -> dict[str, int]:
    """Return all counts of a tree, and print their parts."""
    paths = {str(path.relative_to(tree / "megaptm")): path for path in sorted((tree / "megaptm").rglob("*.py"))}
    lines, classes, statements = Counter[str](), Counter[str](), []
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text)
        lines[package(name)] += text.count("\n")
        classes.update(node.name for node in module.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")
        statements += [(package(name), other) for other in imports(module)]
    crossing = [(importer, other) for importer, other in statements if importer != other and other in lines]

    def below(name: str, known: set[str]) -> set[str]:
        """Return all packages that a package imports, directly or indirectly, except `known`."""
        for other in {other for importer, other in crossing if importer == name} - known:
            known |= {other} | below(other, known | {other})
        return known

    print("lines:", *(f"{name} {number:,}" for name, number in lines.most_common()), sep="\n  ", flush=True)
    entered = enter(tree, folder)
    packages = [*dict.fromkeys(map(package, entered["entered"]))]
    for title, names in {
        "files entered": entered["entered"],
        "on the way": entered["way"],
        "packages entered": packages,
    }.items():
        print(f"{title}:", *names, sep="\n  ")
    return {
        "folders": len({path.parent for path in paths.values()}),
        "files": len(paths),
        "lines": lines.total(),
        "largest package": max(lines.values()),
        "names twice": sum(number > 1 for number in classes.values()),
        "imports": len(set(crossing)),
        "import statements": len(crossing),
        "files entered": len(set(entered["entered"])),
        "on the way": len(set(entered["way"])),
        "packages entered": len(packages),
        "back edges": sum(before in below(after, set()) for before, after in pairwise(packages)),
    }


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--commit", default="", short="")
    commit = arguments.read().commit
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "tree" if commit else ROOT.resolve()
        if commit:
            tree.mkdir()
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
            subprocess.run(["tar", "x", "-C", str(tree)], input=archive, check=True)
        counts = count(tree, folder)
    print("counts:", *(f"{name:<20}{value:>8,}" for name, value in counts.items()), sep="\n  ")
    for name, maximum in GOALS.items():
        print(f"METRIC structure_{name.replace(' ', '_')} {counts[name]} count goal <={maximum}")


if __name__ == "__main__":
    main()

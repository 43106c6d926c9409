"""Imports point one way: a table of allowed imports, compared with all modules, also inside functions."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from megaptm.families import FOLDERS
from megaptm.plugins import EXTENSIONS
from tests import ROOT

# Package -> packages that it may import. `megaptm.errors`, `megaptm.suggest`, `megaptm.credentials`, `megaptm.html`,
# `megaptm.console`, `megaptm.python_path`, `megaptm.node`, `megaptm.section` and `megaptm` itself (its version) are
# common.
# `costs` are the modules of `layers`, `losses` and `models` that do not import torch (`is_costs`).
NO_TORCH = {
    "spec": (),
    "plugins": (),
    "batch": (),
    "batch_schedule": (),
    "mixture": (),
    "families": ("spec", "plugins"),
    "objectives": ("plugins", "batch", "families"),
    "costs": ("spec", "plugins", "batch", "families"),
    "config": ("spec", "plugins", "batch", "batch_schedule", "mixture", "costs", "objectives", "families"),
    "plan": ("spec", "families", "costs", "config"),
}
MAY_IMPORT = {
    **NO_TORCH,
    "layers": ("spec", "plugins", "costs"),
    "losses": ("batch", "costs", "layers"),
    "models": ("spec", "plugins", "batch", "costs", "layers", "losses"),
    "storage": (),
    "tokenizers": ("objectives", "families", "storage"),
    "processes": (),
    "shell": (),
    "data": ("plugins", "batch", "batch_schedule", "mixture", "families", "objectives", "storage", "processes"),
    "track": ("storage", "shell"),
    "checkpoint": ("storage",),
    "resilience": ("storage", "checkpoint"),
    "parallel": ("spec", "batch", "costs", "config", "layers", "losses", "models", "checkpoint"),
    "schedulers": (),
    "run": (
        "spec",
        "plugins",
        "mixture",
        "objectives",
        "families",
        "config",
        "plan",
        "storage",
        "tokenizers",
        "data",
        "track",
        "checkpoint",
        "resilience",
        "schedulers",
    ),
    "report": (
        "spec",
        "families",
        "config",
        "plan",
        "shell",
        "storage",
        "tokenizers",
        "track",
        "resilience",
        "run",
    ),
    "hub": (
        "spec",
        "objectives",
        "families",
        "config",
        "plan",
        "models",
        "storage",
        "tokenizers",
        "checkpoint",
        "resilience",
        "run",
    ),
    "inference": (
        "spec",
        "batch",
        "families",
        "objectives",
        "costs",
        "config",
        "layers",
        "models",
        "storage",
        "tokenizers",
        "data",
        "track",
        "resilience",
        "run",
        "hub",
    ),
    "train": (
        "spec",
        "plugins",
        "batch",
        "mixture",
        "objectives",
        "families",
        "config",
        "plan",
        "tokenizers",
        "processes",
        "data",
        "track",
        "checkpoint",
        "resilience",
        "parallel",
        "run",
        "report",
    ),
    "check": (
        "spec",
        "config",
        "plan",
        "storage",
        "data",
        "track",
        "checkpoint",
        "resilience",
        "schedulers",
        "run",
    ),
    "launch": (
        "spec",
        "plugins",
        "config",
        "plan",
        "processes",
        "storage",
        "resilience",
        "schedulers",
        "run",
        "report",
        "train",
        "check",
    ),
}
FAMILY_MAY_IMPORT = (
    "spec",
    "plugins",
    "batch",
    "objectives",
    "costs",
    "layers",
    "losses",
    "models",
    "hub",
    "config",
    "plan",
    "storage",
    "tokenizers",
    "data",
    "checkpoint",
    "parallel",
    "run",
    "commands",
    "data",
    "inference",
    "families",
    "report",
)
"""Packages that the folder of a family may import, besides other families. Only families may import it: the rest of the
project finds its tables through the catalogue, `megaptm.families`."""
EXTENSION_MAY_IMPORT = {
    "distillation": (
        "spec",
        "batch",
        "families",
        "objectives",
        "costs",
        "config",
        "plan",
        "layers",
        "losses",
        "models",
        "storage",
        "tokenizers",
        "data",
        "checkpoint",
        "resilience",
        "parallel",
        "run",
        "report",
        "inference",
        "train",
        "commands",
    ),
}
"""Folder that extends the core -> packages that it may import. Nothing imports it: `plugins.EXTENSIONS` lists it."""
ENTRY_POINTS = ("__main__", "api", "commands", "demo")
"""The command line and the library, which may import everything."""
PIPELINE_MAY_IMPORT = (
    "batch",
    "config",
    "data",
    "families",
    "objectives",
    "plugins",
    "schedulers",
    "storage",
    "tokenizers",
)


COMMON = (
    *("errors", "suggest", "credentials", "console", "html", "python_path", "node", "section"),
    *("__version__", "__init__"),
)


def modules(package):
    return sorted((ROOT / package).rglob("*.py"))


@cache
def imported(path):
    """Return the dotted names that a module imports, with their lines."""
    return (*_imported(path),)


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            # `from megaptm import errors` imports megaptm.errors, `from megaptm import __version__` only megaptm.
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "megaptm" else [node.module]
            )
            yield from ((name, node.lineno) for name in names)


def part(name):
    """Return the package of a dotted name: `train` for `megaptm.train.loop`, `families.bert` for the folder of a
    family; None outside megaptm, and for common modules."""
    words = name.split(".")
    if words[0] != "megaptm" or len(words) == 1 or words[1] in COMMON:
        return None
    if words[1] in ("layers", "losses", "models") and words[2:3] and is_costs(words[2]):
        return "costs"
    return ".".join(words[1:3]) if words[1] == "families" and words[2:3] and words[2] in FOLDERS else words[1]


def is_costs(module):
    """Whether a module has costs, or patterns of attention, and does not import torch."""
    return module.split("_")[-1] in ("costs", "pattern") or module in ("kernel_choice", "chunk")


def allowed(package):
    return (MAY_IMPORT | EXTENSION_MAY_IMPORT).get(package, FAMILY_MAY_IMPORT)


def is_family(package):
    return package is not None and package.startswith("families.")


def violations():
    for path in modules("megaptm"):
        own = part(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own is None or own in ENTRY_POINTS:
            continue
        for name, line in imported(path):
            other = part(name)
            if is_family(own) and is_family(other):
                continue
            if other is not None and other != own and other not in allowed(own):
                yield f"{path.relative_to(ROOT)}:{line}: {own} may not import {other}"
    for path in modules("data_pipeline"):
        for name, line in imported(path):
            if part(name) not in (None, *PIPELINE_MAY_IMPORT):
                yield f"{path.relative_to(ROOT)}:{line}: data_pipeline may not import {name}"


def test_imports_follow_the_table():
    assert list(violations()) == []


def test_extensions_are_listed():
    assert {f"megaptm.{name}" for name in EXTENSION_MAY_IMPORT} == {*EXTENSIONS}


def test_table_has_no_unused_imports():
    used: dict[str, set[str]] = {name: set() for name in (*MAY_IMPORT, *EXTENSION_MAY_IMPORT, "families.*")}
    for path in modules("megaptm"):
        own = part(".".join(path.relative_to(ROOT).with_suffix("").parts))
        own = "families.*" if is_family(own) else own
        if own in used:
            used[own] |= {
                other for name, _ in imported(path) if (other := part(name)) not in (None, own) and not is_family(other)
            }
    table = MAY_IMPORT | EXTENSION_MAY_IMPORT | {"families.*": FAMILY_MAY_IMPORT}
    assert used == {name: set(unused) for name, unused in table.items()}
    of_pipeline = {part(name) for path in modules("data_pipeline") for name, _ in imported(path)} - {None}
    assert of_pipeline == {*PIPELINE_MAY_IMPORT}


def test_table_is_complete_and_acyclic():
    parts = {part(".".join(path.relative_to(ROOT).with_suffix("").parts)) for path in modules("megaptm")} - {None}
    assert {name for name in parts if not is_family(name)} <= {*MAY_IMPORT, *EXTENSION_MAY_IMPORT, *ENTRY_POINTS}
    done = set()
    while remaining := [name for name in MAY_IMPORT if name not in done]:
        ready = [name for name in remaining if set(MAY_IMPORT[name]) <= done]
        assert ready, f"a circle among {remaining}"
        done.update(ready)


# Benchmarks may import it, because some compare with it.
@pytest.mark.parametrize("package", ["megaptm", "data_pipeline", "tests"])
def test_only_parallel_imports_megatron(package):
    imports = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(package)
        if path.relative_to(ROOT).parts[:2] not in (("megaptm", "parallel"), ("tests", "parallel"), ("tests", "cuda"))
        for name, line in imported(path)
        if name.split(".")[0] == "megatron"
    ]
    assert imports == []


def test_data_imports_torch_only_in_the_loader():
    imports = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules("megaptm/data")
        if path.name not in ("loader.py", "dataset.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.Import, ast.ImportFrom)) and "torch" in ast.unparse(node)
    ]
    assert imports == []


TORCH_FREE = (
    *("run.folder", "inference.folder", "report.summary", "track", "resilience.lock", "check.cli", "launch.local"),
    *("run.prune", "run.checkpoint_copy", "run.selected", "report.compare", "report.page", "report.watch"),
    *("api", "__init__"),
)
IMPORT_WITHOUT_TORCH = """
import importlib, sys
sys.modules["torch"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def torch_free_modules():
    """Yield the modules that are imported without torch: those of `NO_TORCH`, all with costs, and `TORCH_FREE`."""
    yield from (f"megaptm.{name}" for name in TORCH_FREE)
    for path in modules("megaptm"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if part(name) in NO_TORCH or is_costs(path.stem):
            yield name.removesuffix(".__init__")


def test_modules_without_torch():
    command = [sys.executable, "-c", IMPORT_WITHOUT_TORCH, *torch_free_modules()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_children_do_not_search_the_working_directory():
    """`python_path.module_command` starts them with -P: the working directory may be a received folder."""
    command = re.compile(r'sys\.executable,\s*"-(?!P")')
    paths = [*modules("megaptm"), *modules("data_pipeline")]
    assert [str(path) for path in paths if command.search(path.read_text(encoding="utf-8"))] == []


def test_layers_and_losses_do_not_import_models():
    """The table cannot tell, because `costs` is in all three."""
    imports = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for package, later in (("layers", ("losses", "models")), ("losses", ("models",)))
        for path in modules(f"megaptm/{package}")
        for name, line in imported(path)
        if name.startswith(tuple(f"megaptm.{other}" for other in later))
    ]
    assert imports == []


def test_public_names_exist():
    missing = [
        f"{path}: {name}"
        for package in ("megaptm", "data_pipeline")
        for path in (ROOT / package).rglob("__init__.py")
        for name in _missing_public_names(ast.parse(path.read_text()))
    ]
    assert missing == []


def _missing_public_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names in `__all__` that a package neither imports nor defines nor loads in `__getattr__`."""
    bound = {name.asname or name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    bound |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assignments = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    bound |= assignments.keys() | {
        node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    public = assignments.get("__all__")
    if "__getattr__" not in bound and isinstance(public, ast.List | ast.Tuple):
        names = (element.value for element in public.elts if isinstance(element, ast.Constant))
        yield from (name for name in names if name not in bound)


def test_public_type_names_are_unique():
    """Name of a class, or of a type alias: `Piece = tuple[int, int]`."""
    where: dict[str, list[str]] = {}
    for path in [*modules("megaptm"), *modules("data_pipeline")]:
        for name in filter(_names_a_type, _names(ast.parse(path.read_text(encoding="utf-8")))):
            where.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def _names(tree: ast.Module) -> Iterator[str]:
    """Return the top-level definitions of a module, without type variables."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and not _is_type_variable(node.value):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _is_type_variable(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "TypeVar"


def _names_a_type(name: str) -> bool:
    return name[0].isupper() and not name.isupper() and "_" not in name

"""pytest collects each test file: a file in an ignored folder would never run."""

from fnmatch import fnmatch
from pathlib import Path

from tests.conftest import families_of

TESTS = Path(__file__).parent


def test_all_test_files_are_collected(request):
    ignored, expected = request.config.getini("norecursedirs"), request.config.getini("python_files")
    unseen = [
        path.relative_to(TESTS)
        for path in sorted(TESTS.rglob("*.py"))
        if has_test(path)
        and (
            not any(fnmatch(path.name, pattern) for pattern in expected)
            or any(fnmatch(folder, pattern) for folder in path.relative_to(TESTS).parts[:-1] for pattern in ignored)
        )
    ]
    assert not unseen


def test_test_folders_are_packages():
    """Two files with one name in folders without `__init__.py` would shadow each other."""
    assert not [path for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]


def test_family_seconds_include_its_files():
    assert families_of("tests/layouts/test_layouts.py::test_it[bert-TP2]") == {"bert"}
    assert families_of("tests/families/test_transformer_xl.py::test_it") == {"transformer-xl"}
    assert families_of("tests/words/test_glove_run.py::test_it[cw-TP2]") == {"glove", "cw"}
    assert families_of("tests/plan/test_step.py::test_it") == set()


def has_test(path):
    return any(line.lstrip().startswith("def test_") for line in path.read_text(encoding="utf-8").splitlines())

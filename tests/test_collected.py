"""Every test file on disk is one that pytest collects: a folder it passes over would be green for ever."""

from fnmatch import fnmatch
from pathlib import Path

from tests.conftest import families_of

TESTS = Path(__file__).parent


def test_every_file_with_a_test_is_collected(request):
    ignored, wanted = request.config.getini("norecursedirs"), request.config.getini("python_files")
    unseen = [
        path.relative_to(TESTS)
        for path in sorted(TESTS.rglob("*.py"))
        if has_test(path)
        and (
            not any(fnmatch(path.name, pattern) for pattern in wanted)
            or any(fnmatch(folder, pattern) for folder in path.relative_to(TESTS).parts[:-1] for pattern in ignored)
        )
    ]
    assert not unseen


def test_every_folder_of_tests_is_a_package():
    """Two files of one name in folders that are none would shadow each other."""
    assert not [path for path in TESTS.rglob("test_*.py") if not (path.parent / "__init__.py").exists()]


def test_a_family_s_seconds_are_those_of_its_files_too():
    assert families_of("tests/layouts/test_layouts.py::test_it[bert-TP2]") == {"bert"}
    assert families_of("tests/families/test_transformer_xl.py::test_it") == {"transformer-xl"}
    assert families_of("tests/words/test_glove_run.py::test_it[cw-TP2]") == {"glove", "cw"}
    assert families_of("tests/plan/test_step.py::test_it") == set()


def has_test(path):
    return any(line.lstrip().startswith("def test_") for line in path.read_text(encoding="utf-8").splitlines())

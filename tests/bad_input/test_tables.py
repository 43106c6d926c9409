"""Malicious files of image regions and meanings."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.families.unimo.meanings import load_meanings
from megaptm.families.uniter.region_files import RegionError, read_regions


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unbounded_compression_is_refused(method: int) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name in ("features", "norm_bb", "soft_labels"):
            array = io.BytesIO()
            np.save(array, np.zeros((3, 6)))
            archive.writestr(f"{name}.npy", array.getvalue())
    with pytest.raises(RegionError, match="a compression type that numpy does not use"):
        read_regions(file.getvalue(), features=6, classes=6)


def test_huge_number_of_empty_regions_is_refused() -> None:
    """2^40 regions without features need no byte of a file, but 4 TiB of indices."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("features", "norm_bb", "soft_labels"):
            array = io.BytesIO()
            np.lib.format.write_array_header_1_0(array, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 0)})
            archive.writestr(f"{name}.npy", array.getvalue())
    with pytest.raises(RegionError, match="regions of another shape"):
        read_regions(file.getvalue(), features=6, classes=6)


def test_meanings_with_huge_integers_are_refused(tmp_path: Path) -> None:
    (path := tmp_path / "table.json").write_text(
        json.dumps({"continuations": [], "meanings": {"objects": [[[2**70]]]}})
    )
    with pytest.raises(UserError, match="is not a table of meanings"):
        load_meanings(str(path))


def test_long_phrase_is_shortened_in_the_message(tmp_path: Path) -> None:
    phrase = [*range(10_000)]
    (path := tmp_path / "table.json").write_text(
        json.dumps({"continuations": [], "meanings": {"objects": [[phrase, phrase]]}})
    )
    with pytest.raises(UserError, match="occurs twice, among the objects and the objects") as refused:
        load_meanings(str(path))
    assert len(str(refused.value)) < 400 + len(str(path))

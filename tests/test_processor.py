"""Detection of the processor."""

import pytest
import torch

from megaptm import processor
from megaptm.bricks.kernels import prefers_tiles
from megaptm.layers.product import prefers_float32, prefers_onednn

PROCESSORS = {
    "AuthenticAMD avx2 avx512f avx512_bf16": (False, True, True),  # Zen 4 and 5
    "AuthenticAMD avx2": (False, False, False),  # Zen 3
    "GenuineIntel avx2 avx512f avx512_bf16 amx_bf16": (False, False, False),  # Sapphire Rapids
    "GenuineIntel avx2 avx512f": (True, False, False),  # Skylake
    "asimd bf16": (False, False, False),  # Linux on ARM names no vendor
}


@pytest.mark.parametrize("words", PROCESSORS)
def test_vendor_and_instructions_are_read(monkeypatch, words):
    monkeypatch.setattr(processor, "_words", lambda: frozenset(words.split()))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert (prefers_float32(), prefers_onednn(), prefers_tiles()) == PROCESSORS[words]


def test_instruction_names_match_exactly(monkeypatch):
    monkeypatch.setattr(processor, "_words", lambda: frozenset({"avx512_bf16"}))
    assert processor.has_instructions("avx512_bf16")
    assert not processor.has_instructions("avx512")


def test_unknown_processor_has_no_vendor(monkeypatch, tmp_path):
    for path in (tmp_path / "absent", tmp_path):  # reading a folder fails for all users
        monkeypatch.setattr(processor, "DESCRIPTION", path)
        assert processor._words.__wrapped__() == frozenset()


def test_processor_name_that_is_not_utf8(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "DESCRIPTION", tmp_path / "told")
    processor.DESCRIPTION.write_bytes(b"vendor_id : AuthenticAMD\nmodel name : \xff\n")
    assert "AuthenticAMD" in processor._words.__wrapped__()

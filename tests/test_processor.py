"""What the processor is, also where the system does not say it; and what is taken on which."""

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
    "asimd bf16": (False, False, False),  # of ARM Linux tells no maker
}


@pytest.mark.parametrize("words", PROCESSORS)
def test_what_is_fast_follows_from_maker_and_instructions(monkeypatch, words):
    monkeypatch.setattr(processor, "_words", lambda: frozenset(words.split()))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert (prefers_float32(), prefers_onednn(), prefers_tiles()) == PROCESSORS[words]


def test_instructions_are_not_told_by_how_their_name_begins(monkeypatch):
    monkeypatch.setattr(processor, "_words", lambda: frozenset({"avx512_bf16"}))
    assert processor.has_instructions("avx512_bf16")
    assert not processor.has_instructions("avx512")


def test_a_processor_that_nothing_tells_of_is_no_ones(monkeypatch, tmp_path):
    for place in (tmp_path / "absent", tmp_path):  # a folder cannot be read, whoever asks
        monkeypatch.setattr(processor, "DESCRIPTION", place)
        assert processor._words.__wrapped__() == frozenset()


def test_a_processor_whose_name_is_no_text_is_known(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "DESCRIPTION", tmp_path / "told")
    processor.DESCRIPTION.write_bytes(b"vendor_id : AuthenticAMD\nmodel name : \xff\n")
    assert "AuthenticAMD" in processor._words.__wrapped__()

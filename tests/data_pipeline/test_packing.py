"""Shares of padding and of cut documents equal those counted one by one."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from data_pipeline.corpus.build import build_corpus
from data_pipeline.inspection import inspect_corpus
from data_pipeline.packing import merge_packing_sums, packing_by_length, packing_sums
from megaptm.data import open_mix
from tests.data.corpora import tiny_corpus, tiny_special

LENGTHS = np.array([1, 3, 8, 9, 20])


@pytest.mark.parametrize("sequence", [4, 8, 16])
def test_shares_equal_counts_over_all_offsets(sequence):
    share = packing_by_length(packing_sums(LENGTHS, [sequence]))[sequence]
    cut = [
        start // sequence != (start + length - 1) // sequence for length in LENGTHS for start in range(sequence)
    ]  # fmt: skip
    assert share.packed_cut == pytest.approx(np.mean(cut))
    padding = [max(0, sequence - length) / sequence for length in LENGTHS]
    assert share.padding == pytest.approx(np.mean(padding))
    assert share.cut == np.mean(sequence < LENGTHS)
    assert share.lost == pytest.approx(np.maximum(LENGTHS - sequence, 0).sum() / LENGTHS.sum())


def test_sums_of_shards_are_those_of_the_corpus():
    parts = [packing_sums(LENGTHS[:2]), packing_sums(LENGTHS[2:])]
    assert merge_packing_sums(parts) == packing_sums(LENGTHS)
    assert [*packing_by_length(merge_packing_sums(parts))] == [128]  # all documents fit into the first


def test_packed_cuts_of_real_sequences(tmp_path):
    """The expected share is that of the sequences that a run reads, within the deviation of 300 documents."""
    tiny_corpus(tmp_path / "a", documents=300, sentences=False, words=False)
    special = tiny_special()
    mix = open_mix({str(tmp_path / "a"): 1}, objective="causal-lm", sequence=64, seed=0, special=special)
    [order] = mix.orders
    edges = np.concatenate(
        [order._window((0, window)).edges[:-1] + order._epoch(0).measures[window] for window in range(1)]
    )
    lengths = np.diff(order._window((0, 0)).edges) - order.cut.slots
    cut = edges // order.cut.stride != (edges + lengths - 1) // order.cut.stride
    expected = packing_by_length(packing_sums(lengths, [order.cut.stride]))[order.cut.stride].packed_cut
    assert np.mean(cut) == pytest.approx(expected, abs=0.06)


def test_build_and_inspect_report_packing(recipe, tmp_path):
    report = build_corpus(recipe, tmp_path / "corpus", workers=0)
    assert [*report.packing][:2] == [128, 256]
    saved = json.loads((tmp_path / "corpus" / "report.json").read_text())["packing"]
    assert saved["128"]["padding"] == report.packing[128].padding
    console = Console(file=io.StringIO(), width=120)
    inspect_corpus(str(tmp_path / "corpus"), console, objective="causal-lm", count=1)
    printed = console.file.getvalue()
    assert "documents cut (packed)" in printed
    assert "padding: 0.0% of the positions of 256 samples" in printed

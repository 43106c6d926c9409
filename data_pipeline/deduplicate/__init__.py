"""Which documents and paragraphs say again what an earlier one said, over the whole corpus, in bounded memory.

A worker writes a part with `write_part(stem, documents, options)`, which leaves sketches beside the documents
(`sketch`: what files there are). When all parts are there:

    if options.paragraphs:
        parts = cut_paragraphs(parts, options, run, folder)   # new parts, with what was dropped and cut
    duplicates = find_duplicates(parts, options, run, folder)
    for number, part in enumerate(parts):
        rows = np.flatnonzero(duplicates.stay(number))

A part is anything with a `stem` and its number of `documents`; its stem must change with its documents and with the
options. `run(name, function, jobs)` returns the results in the order of the jobs. Jobs are frozen dataclasses that name
all that their results depend on, functions are at module level and write files that appear whole, so `run` may send
them to other processes, in any order, and need not run a job again whose result it has.
"""

from data_pipeline.deduplicate.files import PartFile, read_part, write_part
from data_pipeline.deduplicate.find import Duplicates, find_duplicates
from data_pipeline.deduplicate.options import Deduplicate, Near, Paragraphs
from data_pipeline.deduplicate.paragraphs import CutPart, cut_paragraphs

__all__ = [
    "CutPart",
    "Deduplicate",
    "Duplicates",
    "Near",
    "Paragraphs",
    "PartFile",
    "cut_paragraphs",
    "find_duplicates",
    "read_part",
    "write_part",
]

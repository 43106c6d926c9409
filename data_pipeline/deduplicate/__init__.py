"""Find duplicate documents and paragraphs in the corpus, with bounded memory.

A worker writes a part with `write_part(stem, documents, options)`, which also writes sketches (see `sketch` for the
files). When all parts are written:

    if options.paragraphs:
        parts = cut_paragraphs(parts, options, run, folder)   # new parts, with what was dropped and cut
    duplicates = find_duplicates(parts, options, run, folder)
    for number, part in enumerate(parts):
        rows = np.flatnonzero(duplicates.is_retained(number))

A part is any object with a `stem` and a number of `documents`. The stem must change with the documents and options.
`run(name, function, jobs)` returns results in the order of the jobs. Jobs are frozen dataclasses that contain
everything their result depends on. Functions are at module level and write files atomically, so `run` may execute them
in other processes, in any order, and may reuse stored results.
"""

from data_pipeline.deduplicate.files import PartFile, read_part, write_part
from data_pipeline.deduplicate.find import Duplicates, find_duplicates
from data_pipeline.deduplicate.options import Deduplicate, NearDuplicateOptions, ParagraphOptions
from data_pipeline.deduplicate.paragraphs import CutPart, cut_paragraphs

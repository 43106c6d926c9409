"""Text sources: find files, divide them into spans, and read the documents of each format."""

from data_pipeline.sources.files import PYTHON_LIBRARY, find_files
from data_pipeline.sources.readers import read_span
from data_pipeline.sources.source import InputFile, OnError, Source, Span
from data_pipeline.sources.spans import partition_files

__all__ = ["PYTHON_LIBRARY", "InputFile", "OnError", "Source", "Span", "find_files", "partition_files", "read_span"]

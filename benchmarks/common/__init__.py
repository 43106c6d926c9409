"""Helpers of several benchmarks: real text, tables, environments of peers."""

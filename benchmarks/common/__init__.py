"""What several benchmarks need: real text, a table, environments of peers."""

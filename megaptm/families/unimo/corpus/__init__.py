"""Files that the objectives of UNIMO read besides a corpus."""

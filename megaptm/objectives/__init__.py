"""Pre-training tasks."""

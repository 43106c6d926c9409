"""Resilience of a run: journal of events, lock, graceful stop, hang detection."""

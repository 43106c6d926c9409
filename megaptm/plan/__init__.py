"""Estimates of a run before it starts: parameters, memory, time, failures. No torch."""

"""Output about a run: summary, curves, lines on the terminal. No torch."""

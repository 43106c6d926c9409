"""What a run needs, said before it is started. No torch."""

"""A run told to people: in the terminal, as a page, as curves. No torch."""

"""A run told to people: a summary, curves, what it says in the terminal. No torch."""

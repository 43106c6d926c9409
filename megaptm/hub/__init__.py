"""Import of weights from Hugging Face, and export to it."""

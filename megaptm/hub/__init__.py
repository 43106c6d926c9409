"""Weights from Hugging Face and back."""

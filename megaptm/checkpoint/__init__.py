"""Checkpoints: folders of safetensors files that can be written and read with any layout."""

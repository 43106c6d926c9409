"""Checkpoints: folders of safetensors files that any layout can write and read."""

"""Checkpoints: folders of safetensors files that any layout writes and any other reads."""

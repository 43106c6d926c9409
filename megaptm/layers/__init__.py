"""Bricks of a transformer layer, written for one device; how each weight may be split is a word on it."""

"""Corpora of texts and regions of images: files of a detector, drawn shapes, and retrieval of similar documents."""

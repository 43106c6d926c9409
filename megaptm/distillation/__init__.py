"""Distillation: a student learns from a teacher (docs/distillation.md). The core finds the modules of this folder by
name, as those of families (`families.registry`)."""

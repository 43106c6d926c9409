"""Sections of a config that are long; `config.schema` has the others, and the whole."""

"""Long sections of a config; `config.schema` has the others and the full config."""

"""Commands, one module each. Heavy modules are imported inside the functions, so that `--help` stays fast."""

"""One module a command. Each imports what it runs inside the function, so that `--help` imports nothing heavy."""

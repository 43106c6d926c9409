"""Where text comes from: files found and dealt out, and their formats read."""

"""Files here and on object stores: one way to read and write them, with a deadline on every call and patience with both."""

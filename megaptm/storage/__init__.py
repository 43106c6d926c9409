"""Files here and on object stores: one way to read and write them, every call with a deadline, and with patience."""

"""InfoWord (arXiv:1910.08350): an objective for encoders, without a table of its own."""

FAMILIES = ()

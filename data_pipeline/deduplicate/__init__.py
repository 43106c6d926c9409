"""Which documents and paragraphs say again what an earlier one said."""

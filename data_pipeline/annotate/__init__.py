"""What is known of a text beside its tokens: where sentences, words, tagged phrases and turns begin."""

"""Use of trained models: load, generate, encode, evaluate. One process, no megatron-core."""

"""What is done with a trained model: load it, generate, evaluate. One process, no megatron-core."""

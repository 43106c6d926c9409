"""Losses: token cross-entropy, sampled softmax, soft targets, contrastive loss."""

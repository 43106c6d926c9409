"""What a run needs, looked at before the queue: findings by topic, each one sentence. No torch."""

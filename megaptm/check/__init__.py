"""Checks of a run's requirements before it is submitted: findings by topic, one sentence each. No torch."""

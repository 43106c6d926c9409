"""What a head's output costs."""

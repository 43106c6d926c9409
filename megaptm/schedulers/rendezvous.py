"""Ports for the rendezvous of a run's processes."""

# Below the range that Linux assigns to outgoing connections (32768 and up), above the well-known ports.
RENDEZVOUS_PORTS = range(12000, 32000)

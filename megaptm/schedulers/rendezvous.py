"""Ports at which the processes of a run meet (rendezvous)."""

# Below the range that Linux assigns to outgoing connections (32768 and up), above the well-known ports.
RENDEZVOUS_PORTS = range(12000, 32000)

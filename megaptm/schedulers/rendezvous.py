"""Ports at which the processes of a job may find each other."""

# Below the range that Linux gives to outgoing connections (32768 and up), above the well-known ports.
RENDEZVOUS_PORTS = range(12000, 32000)

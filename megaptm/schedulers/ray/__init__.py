"""Ray: connection to a cluster, or a cluster on this machine; its nodes; a process on each node."""

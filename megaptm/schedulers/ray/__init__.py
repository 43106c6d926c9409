"""A Ray cluster: joining or starting one, its nodes, a process on each."""

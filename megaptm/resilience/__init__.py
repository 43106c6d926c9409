"""What keeps a run alive and honest: its journal of events, its lock, and the way it is asked to stop."""

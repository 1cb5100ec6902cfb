"""What was: closed segments of each partition's log, and snapshots of hot state, in the object
store."""

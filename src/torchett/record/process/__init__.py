"""The process that a rank runs in: its threads, the memory around it, the error that ended it."""

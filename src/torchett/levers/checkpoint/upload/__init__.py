"""From a copy in memory to a durable checkpoint, in a process of its own."""

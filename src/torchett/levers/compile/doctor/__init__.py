"""Why graphs were compiled again, and how to prevent it."""

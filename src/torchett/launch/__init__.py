"""`ett run`: a command, its attempts, and what only the launcher can observe."""

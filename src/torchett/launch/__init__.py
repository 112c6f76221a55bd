"""`ett run`: a command, its attempts, and what the launcher alone can see of them."""

"""`ett bench`: the same job, the same failures, with and without the levers."""

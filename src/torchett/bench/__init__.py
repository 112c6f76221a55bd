"""`ett bench`: the same job with the same failures, with and without the levers."""

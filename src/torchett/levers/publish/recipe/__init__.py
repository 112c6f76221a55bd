"""From an anchor checkpoint to files that can be served: a recipe and its steps."""

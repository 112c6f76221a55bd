"""A Checkpointer in the loop of somebody else's trainer: one module for each framework."""

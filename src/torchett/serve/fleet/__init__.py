"""The pages of a fleet: values from its SQL views, one thread that asks."""

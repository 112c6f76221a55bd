"""The registry: immutable versions of a model, and aliases with their history."""

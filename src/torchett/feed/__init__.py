"""Batches, from the processes that make them to the one that trains."""

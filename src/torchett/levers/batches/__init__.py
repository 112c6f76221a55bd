"""Batches on their way from the loader's workers to the trainer."""

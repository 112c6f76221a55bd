"""Compiling the model before the first batch arrives."""

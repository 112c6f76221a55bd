"""Compile once, reuse everywhere, recompile never."""

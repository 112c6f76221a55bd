"""Overlapping start-up: a plan of stages, compiling on a fast batch, background imports."""

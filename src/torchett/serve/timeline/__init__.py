"""The Timeline page: rank × time, as tiles with levels of detail."""

"""Alarms of a fleet: what changed, since when, exceeded limits, receivers."""

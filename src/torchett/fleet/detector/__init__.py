"""Alarms of a fleet: what changed and since when, limits that are broken, and who is told."""

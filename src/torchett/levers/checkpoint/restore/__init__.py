"""Restoring: the newest checkpoint whose every byte is right."""

"""Segments on disk: files by period, joined and removed in time."""

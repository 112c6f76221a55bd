"""Run folders copied to a server while they are written: same bytes at the same offset."""

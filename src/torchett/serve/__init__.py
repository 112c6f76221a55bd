"""Runs and fleets in a browser: pages, each with a `.json` twin, and what other tools read."""

"""The commands. Thin: parse, call, print."""

"""A record of every compile: when, why, and in which phases."""

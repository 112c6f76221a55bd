"""The tier in memory: snapshots that outlive their trainer, and a copy of each on another node."""

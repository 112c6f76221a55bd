"""torch's elastic agent, extended: restarts, hangs and causes on record."""

"""A ledger for the eye: Rich renderables, no I/O."""

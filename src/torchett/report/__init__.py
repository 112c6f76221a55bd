"""Reports: a ledger as Rich renderables, without I/O."""

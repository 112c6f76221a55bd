"""The compile lever: a shared cache, a record of every compile, a doctor for recompiles, tuning."""

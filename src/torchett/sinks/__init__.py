"""Sinks: a run's ledger in the formats of TensorBoard, W&B, MLflow, Perfetto and other tools."""

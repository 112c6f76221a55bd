"""Sinks: a run's ledger written where other tools look: TensorBoard, W&B, MLflow, Perfetto."""

"""torchett: every second of a PyTorch training job in exactly one account."""

__version__ = "0.1.0"

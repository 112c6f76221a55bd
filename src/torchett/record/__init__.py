"""What runs inside a trainer. The standard library only; never raises into the loop."""

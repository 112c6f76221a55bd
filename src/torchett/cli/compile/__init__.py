"""`ett compile …`."""

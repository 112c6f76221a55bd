"""`ett checkpoint …`."""

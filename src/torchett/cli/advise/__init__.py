"""`ett advise`."""

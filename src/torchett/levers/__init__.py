"""The levers: each wins back seconds of one kind, and none knows another."""

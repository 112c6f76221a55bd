"""What a state holds: its pieces, and what each rank has of its own."""

"""A plan of start-up stages that overlap."""

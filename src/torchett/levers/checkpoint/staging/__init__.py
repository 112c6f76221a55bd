"""The copy of a state into shared memory while training goes on."""

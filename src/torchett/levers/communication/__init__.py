"""The communication of start-up: its costs, and fewer process groups and collectives."""

"""Faster imports: bytecode that is kept and compiled ahead."""

"""Other tools' records made into histories: one module a format, lines in, a history out.

What a file does not tell is left unattributed (or, between steps, other_in_loop), and a note says
so; nothing is guessed. A line that is not of the format is refused: `FILE:LINE: expected …`.
"""

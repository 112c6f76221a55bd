"""The flight record: what one rank writes, readable at every byte."""

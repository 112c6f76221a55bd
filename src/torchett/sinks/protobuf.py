"""Encodes fields of protobuf messages as bytes: the few kinds that a trace needs."""


def varint(value: int) -> bytes:
    """An integer of at least 0, with seven bits in each byte."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """A field with an integer of at least 0."""
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes) -> bytes:
    """A field with bytes or a message."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field with a string."""
    return data(field, value.encode(errors="replace"))

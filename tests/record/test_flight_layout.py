"""A log is readable at every byte: what is whole is found, what is not is said, nothing is made up.

│ chunk 0 │ chunk 1 │ ▒▒damage▒▒ │ chunk 2 │ half a chu
"""

import json

import pytest

from torchett.record.flight.format import (
    CHUNK,
    CHUNK_MAGIC,
    FRAMES,
    NOTE,
    Chunk,
    Damage,
    chunk,
    chunks,
)

Whole = tuple[int, int, int, int, bytes]


def made(i: int) -> bytes:
    """The i-th chunk of a small log; one payload holds the mark that chunks begin with."""
    payload = [b"frames " * 3, json.dumps({"note": i}).encode(), CHUNK_MAGIC * 3, b"last"][i]
    return chunk(NOTE if i == 1 else FRAMES, payload, attempt=2, rank=5, reach=256 * i)


LOG = [made(i) for i in range(4)]
WHOLE = b"".join(LOG)


def found(data: bytes) -> tuple[list[Whole], list[Damage]]:
    """What is whole in the data, and what is not."""
    pieces = list(chunks(memoryview(data)))
    sizes = [piece.size for piece in pieces]
    assert sum(sizes) == len(data), "every byte is in a chunk or in damage"
    assert all(size > 0 for size in sizes)
    whole = [
        (p.kind, p.attempt, p.rank, p.reach, bytes(p.payload))
        for p in pieces
        if isinstance(p, Chunk)
    ]
    return whole, [piece for piece in pieces if isinstance(piece, Damage)]


TRUE, _ = found(WHOLE)


def test_chunks_come_back_as_they_were_written() -> None:
    """Kind, lane, reach and payload survive the way through the file."""
    whole, damage = found(WHOLE)
    assert damage == []
    assert [one[:4] for one in whole] == [
        (FRAMES, 2, 5, 0),
        (NOTE, 2, 5, 256),
        (FRAMES, 2, 5, 512),
        (FRAMES, 2, 5, 768),
    ]
    assert json.loads(whole[1][4]) == {"note": 1}


def test_an_empty_log_holds_nothing() -> None:
    assert found(b"") == ([], [])


def test_a_chunk_without_payload_is_whole() -> None:
    whole, damage = found(chunk(FRAMES, b"", attempt=0, rank=0, reach=1))
    assert (whole, damage) == ([(FRAMES, 0, 0, 1, b"")], [])


def test_a_log_cut_off_at_any_byte_keeps_the_chunks_before_the_cut() -> None:
    """
    │ chunk 0 │ chunk 1 │ chu✂        chunks 0 and 1, then damage at the end
    """
    ends = [sum(map(len, LOG[: i + 1])) for i in range(len(LOG))]
    for cut in range(len(WHOLE) + 1):
        whole, damage = found(WHOLE[:cut])
        before = [end for end in ends if end <= cut]
        assert whole == TRUE[: len(before)]
        left = cut - max(before, default=0)
        assert damage == ([Damage(size=left, at_end=True)] if left else [])


def test_any_flipped_bit_costs_one_chunk_and_is_said() -> None:
    """
    │ chunk 0 │ ch▒nk 1 │ chunk 2 │ chunk 3 │
    """
    for at in range(len(WHOLE)):
        hit = next(i for i in range(len(LOG)) if at < sum(map(len, LOG[: i + 1])))
        for bit in range(8):
            broken = bytearray(WHOLE)
            broken[at] ^= 1 << bit
            whole, damage = found(bytes(broken))
            assert whole == TRUE[:hit] + TRUE[hit + 1 :], (at, bit)
            assert damage == [Damage(size=len(LOG[hit]), at_end=hit == len(LOG) - 1)], (at, bit)


@pytest.mark.parametrize("junk", [b"\0" * 100, CHUNK_MAGIC, CHUNK_MAGIC * 9, b"x", LOG[0][:-1]])
def test_junk_between_chunks_is_stepped_over(junk: bytes) -> None:
    """
    │ chunk 0 │ junk │ chunk 1 │ junk │ chunk 2 │ …
    """
    whole, damage = found(junk.join(LOG))
    assert whole == TRUE
    assert damage == [Damage(size=len(junk), at_end=False)] * 3


def test_a_length_beyond_the_end_is_damage() -> None:
    """A head that promises more than there is: perhaps it is still being written."""
    huge = bytearray(LOG[0])
    huge[8:12] = (1 << 31).to_bytes(4, "little")
    whole, damage = found(bytes(huge) + LOG[1])
    assert whole == [TRUE[1]]
    assert damage == [Damage(size=len(LOG[0]), at_end=False)]


def test_a_chunk_of_another_frame_size_is_not_mistaken_for_ours() -> None:
    """The size of a frame is part of every head, so that a reader never reads across frames."""
    head = list(CHUNK.unpack_from(LOG[0]))
    head[2] += 8
    other = CHUNK.pack(*head) + LOG[0][CHUNK.size :]
    whole, damage = found(other + LOG[1])
    assert whole == [TRUE[1]]
    assert len(damage) == 1

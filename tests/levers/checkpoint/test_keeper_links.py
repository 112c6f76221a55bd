"""What passes between keepers: for those who know the secret, and only bytes that are right."""

import socket
import threading
from collections.abc import Iterator

import pytest

from torchett.levers.checkpoint.memory import neighbour
from torchett.levers.checkpoint.memory.kept import Buffer, Sealed, SnapshotId

SECRET = b"s" * 32


def snapshot(step: int, data: bytes) -> tuple[Sealed, Buffer]:
    buffer = Buffer.make(len(data))
    with buffer.map() as memory:
        memory[: len(data)] = data
    id = SnapshotId(token=f"{step:04d}", step=step, rank=3, world_size=4)
    return buffer.seal(id, b"head", len(data)), buffer


@pytest.fixture
def copies() -> neighbour.Copies:
    return neighbour.Copies(3000)


@pytest.fixture
def address(copies: neighbour.Copies) -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        while True:
            try:
                link, _ = listener.accept()
            except OSError:
                return
            try:
                neighbour.serve(link, SECRET, copies, iter(copies.sealed()))
            except (OSError, EOFError, ValueError):
                pass
            link.close()

    threading.Thread(target=work, daemon=True).start()
    yield listener.getsockname()
    listener.close()


def put(address: tuple[str, int], step: int, data: bytes, secret: bytes = SECRET) -> None:
    sealed, buffer = snapshot(step, data)
    with buffer.viewed() as view:
        neighbour.put(address, secret, sealed, view[: len(data)], 1e12)
    buffer.close()


def test_a_copy_comes_back_as_it_was_sent(address: tuple[str, int]) -> None:
    put(address, 1, b"x" * 1000)
    sealed, buffer = neighbour.get(address, SECRET, "0001", 3)
    with buffer.map() as memory:
        assert memory[: sealed.size] == b"x" * 1000
    assert sealed.head == b"head"
    buffer.close()


def test_the_two_newest_are_kept(address: tuple[str, int], copies: neighbour.Copies) -> None:
    for step in range(4):
        put(address, step, bytes([step]) * 1000)
    assert sorted(sealed.id.step for sealed, _ in copies.sealed()) == [2, 3]
    assert copies.held_bytes == 2000


def test_who_does_not_know_the_secret_gets_nothing(
    address: tuple[str, int], copies: neighbour.Copies
) -> None:
    with pytest.raises((PermissionError, EOFError, OSError)):
        put(address, 1, b"x" * 100, b"another")
    assert copies.sealed() == []
    put(address, 2, b"x" * 100)
    with pytest.raises((PermissionError, EOFError, OSError)):
        neighbour.get(address, b"another", "0002", 3)


def test_bytes_that_are_wrong_are_no_copy(
    address: tuple[str, int], copies: neighbour.Copies
) -> None:
    sealed, buffer = snapshot(1, b"x" * 100)
    with buffer.viewed() as view:
        view[7] = 0
        with pytest.raises(ValueError, match="CRC"):
            neighbour.put(address, SECRET, sealed, view[:100], 1e12)
    assert copies.sealed() == []


def test_memory_for_copies_is_bounded(address: tuple[str, int], copies: neighbour.Copies) -> None:
    with pytest.raises(ValueError, match="allowed"):
        put(address, 1, b"x" * 5000)
    assert copies.held_bytes == 0

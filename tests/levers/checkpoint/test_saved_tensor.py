"""A saved tensor is viewed in place if it is a plain one, and left to torch.load otherwise."""

import io
import zipfile
from typing import Any

import pytest
import torch

from torchett.levers.checkpoint.state.saved_tensor import view

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]


def saved(thing: Any, before: int = 64) -> tuple[bytearray, int, int]:
    """A file with something before and behind what was saved: (bytes, start, length)."""
    file = io.BytesIO(bytes(before))
    file.seek(before)
    torch.save(thing, file)
    length = file.tell() - before
    return bytearray(file.getvalue() + bytes(100)), before, length


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(), (0, 3), (1,), (3, 4), (2, 1, 5)])
def test_a_plain_tensor_is_viewed(kind: torch.dtype, size: tuple[int, ...]) -> None:
    tensor = torch.randint(0, 2, size).to(kind)
    found = view(*saved(tensor))
    assert found is not None
    assert found.dtype == kind
    assert torch.equal(found, tensor)


def test_it_is_the_file_s_own_memory() -> None:
    data, start, length = saved(torch.zeros(3))
    view(data, start, length).fill_(1)
    assert torch.equal(view(data, start, length), torch.ones(3))


@pytest.mark.parametrize(
    "thing",
    [
        pytest.param(torch.zeros(3, 4).t(), id="another order"),
        pytest.param(torch.arange(5.0)[2:], id="a part"),
        pytest.param(torch.zeros(1).expand(4), id="one number for all"),
        pytest.param(torch.nn.Parameter(torch.zeros(2)), id="a parameter"),
        pytest.param(torch.zeros(2, dtype=torch.float8_e4m3fn), id="a kind of another pickle"),
        pytest.param(torch.eye(2).to_sparse(), id="sparse"),
        pytest.param({"a": torch.zeros(2)}, id="not a tensor"),
    ],
)
def test_anything_else_is_not(thing: Any) -> None:
    assert view(*saved(thing)) is None


def test_a_tensor_that_lies_askew_is_not() -> None:
    assert view(*saved(torch.zeros(3), before=63)) is None


def test_bytes_that_are_no_archive_are_not() -> None:
    assert view(bytearray(500), 0, 500) is None


def test_a_pickle_that_calls_something_else_is_not_run() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
        archive.writestr("archive/data/0", bytes(16))
    data = bytearray(file.getvalue())
    assert view(data, 0, len(data)) is None

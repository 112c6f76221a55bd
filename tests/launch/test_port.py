"""A port that is kept for rank 0: no other program is given it, and torch's store can listen."""

import datetime
import errno
import socket
from types import SimpleNamespace

import pytest

from torchett.launch import port as ports
from torchett.launch.port import keep_ports, kept_port


def test_nobody_else_is_given_it() -> None:
    port = kept_port()
    for place in ("127.0.0.1", ""):
        with socket.socket() as other, pytest.raises(OSError, match="already in use"):
            other.bind((place, port))


@pytest.mark.parametrize("libuv", [True, False])
def test_torchs_store_listens_on_it(libuv: bool) -> None:
    dist = pytest.importorskip("torch.distributed")
    soon = datetime.timedelta(seconds=10)
    at = ("localhost", kept_port())
    server = dist.TCPStore(
        *at, is_master=True, wait_for_workers=False, timeout=soon, use_libuv=libuv
    )
    dist.TCPStore(*at, is_master=False, timeout=soon, use_libuv=libuv).set("key", "value")
    assert server.get("key") == b"value"


def test_the_next_one_lets_the_last_one_go() -> None:
    first = kept_port()
    second = kept_port()
    assert second != first
    with socket.socket() as other:
        other.bind(("", first))


def test_torch_chooses_where_none_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    rendezvous = SimpleNamespace(get_free_port=lambda: 1234)
    keep_ports(rendezvous)
    assert rendezvous.get_free_port() != 1234
    monkeypatch.setattr(ports.socket, "socket", refuse)
    assert rendezvous.get_free_port() == 1234


def test_torchs_rendezvous_asks_for_a_port_by_this_name() -> None:
    api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
    assert "get_free_port" in api.RendezvousStoreInfo.build.__code__.co_names

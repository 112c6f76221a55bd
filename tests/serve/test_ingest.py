"""Shipped bytes arrive once and whole; whatever else is sent is refused, and changes nothing."""

import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from torchett.fleet.state import State
from torchett.fleet.tokens import add_token, revoke_token
from torchett.serve.access import Access, Rate, ReadersOnly
from torchett.serve.app import make_app
from torchett.serve.inbox import Inbox, InboxError, Limits
from torchett.serve.ingest import Ingest
from torchett.ship.files import is_job, kind_of
from torchett.ship.protocol import (
    BODY_BYTES,
    CONTENT_TYPE,
    MOST_PIECES,
    UNPACKED_BYTES,
    Piece,
    ProtocolError,
    packed,
    unpacked,
)

NAME = "attempt-0/rank-0.ett"
HEADERS = {"content-type": CONTENT_TYPE, "content-encoding": "deflate"}


class Place:
    """A server over a fleet of its own, and what is sent to it."""

    def __init__(self, folder: Path, limits: Limits | None = None, loopback: bool = True) -> None:
        self.fleet = folder / "fleet"
        self.fleet.mkdir()
        (folder / "ett-runs").mkdir()
        self.state = State(self.fleet / "fleet.db")
        access = Access(self.fleet / "fleet.db", loopback=loopback)
        self.ingest = Ingest(self.fleet, access, limits=limits or Limits(reserve_bytes=0))
        app = make_app(folder / "ett-runs", more=self.ingest.routes)
        self.client = TestClient(ReadersOnly(app, access))

    def post(
        self,
        *pieces: Piece,
        job: str = "gpt",
        token: str | None = None,
        body: bytes | None = None,
        **more: str,
    ) -> "Answer":
        bearer = {"authorization": f"Bearer {token}"} if token else {}
        data = zlib.compress(packed(pieces)) if body is None else body
        headers = HEADERS | bearer | {key.replace("_", "-"): value for key, value in more.items()}
        found = self.client.post(f"/ship/v1/{job}", content=data, headers=headers)
        is_json = found.headers.get("content-type") == "application/json"
        return Answer(found.status_code, found.json() if is_json else {})

    def bytes(self, job: str = "gpt", name: str = NAME, project: str = "default") -> bytes | None:
        path = self.fleet / "runs" / project / job / name
        return path.read_bytes() if path.exists() else None

    def files(self) -> list[str]:
        runs = self.fleet / "runs"
        return sorted(str(path.relative_to(runs)) for path in runs.rglob("*") if path.is_file())


class Answer:
    def __init__(self, status: int, said: dict[str, object]) -> None:
        self.status, self.said = status, said

    @property
    def sizes(self) -> object:
        return self.said["sizes"]


def piece(offset: int, data: bytes, name: str = NAME) -> Piece:
    return Piece(name=name, offset=offset, data=data)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with made.client:
        yield made


def test_bytes_are_put_at_their_offset_and_acknowledged(place: Place) -> None:
    assert place.post(piece(0, b"abc")).sizes == {NAME: 3}
    assert place.post(piece(3, b"def"), piece(6, b"g")).sizes == {NAME: 7}
    assert place.bytes() == b"abcdefg"
    assert place.client.get("/ship/v1/gpt").json() == {"sizes": {NAME: 7}}


def test_a_batch_that_is_sent_again_changes_nothing(place: Place) -> None:
    for _ in range(3):
        assert place.post(piece(0, b"abc"), piece(3, b"def")).sizes == {NAME: 6}
    assert place.post(piece(2, b"cdefgh")).sizes == {NAME: 8}
    assert place.bytes() == b"abcdefgh"


def test_beyond_the_end_nothing_is_written_and_the_size_is_told(place: Place) -> None:
    assert place.post(piece(10, b"x")).sizes == {NAME: 0}
    place.post(piece(0, b"abc"))
    assert place.post(piece(1 << 40, b"x")).sizes == {NAME: 3}
    assert place.bytes() == b"abc"


def test_other_bytes_are_never_written_over(place: Place) -> None:
    place.post(piece(0, b"abc"))
    assert place.post(piece(1, b"XYZ")).status == 409
    assert place.post(piece(0, b"X")).status == 409
    assert place.bytes() == b"abc"


def test_small_files_are_replaced_and_removed(place: Place) -> None:
    live = "attempt-0/rank-0.live"
    for data in (b"one", b"two!", b""):
        place.post(Piece(name=live, offset=0, data=data, replaces=True))
        assert place.bytes(name=live) == (data or None)
    assert place.files() == ["default/gpt/.shipped"]


def test_any_cut_of_any_bytes_arrives_whole(place: Place) -> None:
    """Pieces in random sizes, some twice, some too early, some with an answer that is lost."""
    chance = random.Random(7)
    data = chance.randbytes(20_000)
    at = 0
    while at < len(data):
        begin = max(at - chance.choice([0, 0, 100]), 0)
        if chance.random() < 0.2:
            assert place.post(piece(at + 5000, b"later")).sizes == {NAME: at}
        end = min(at + chance.randrange(1, 900), len(data))
        for _ in range(chance.choice([1, 1, 2])):
            assert place.post(piece(begin, data[begin:end])).sizes == {NAME: end}
        at = end
    assert place.bytes() == data


# Names -------------------------------------------------------------------------------------------

BAD_NAMES = [
    "../../etc/passwd", "/etc/passwd", "attempt-0/../../x.ett", "attempt-0//rank-0.ett",
    "attempt-0/rank-0.ett/..", "attempt-0/rank-0.ett\0.jsonl", ".shipped", "attempt-0/.x.part",
    "attempts-0.jsonl/rank-0.ett", "attempt-00/rank-0.ett", "attempt--1/rank-0.ett", "",
    "attempt-0/rank-9999999999.ett", "attempt-0\\rank-0.ett", "fleet.db", "attempts-0.jsonl\n",
    "attempt-١/rank-0.ett", "notice-0-0", "beacon.json",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_no_name_is_a_path(place: Place, name: str) -> None:
    assert kind_of(name) is None
    for replaces in (False, True):
        bad = Piece(name=name, offset=0, data=b"x", replaces=replaces)
        assert place.post(bad).status == 400
    assert place.files() == []


@pytest.mark.parametrize(
    "job", ["..", "..%2fx", "%2e%2e", ".hidden", "-rf", "a%00b", "a%2fb", "a" * 300]
)
def test_no_job_is_a_path(place: Place, job: str) -> None:
    assert place.post(piece(0, b"x"), job=job).status in (400, 404)
    assert place.files() == []


def test_names_that_safe_name_makes_are_jobs() -> None:
    from torchett.record.identity import safe_name

    for text in ("gpt", "größe 7", "a/b", "../x", "日本", "x" * 100, "_a", "7", "run.2-3"):
        assert is_job(safe_name(text)), text


def test_a_link_is_not_followed(place: Place, tmp_path: Path) -> None:
    place.post(piece(0, b"x"), piece(0, b"y", "attempts-0.jsonl"))
    victim = tmp_path / "victim"
    victim.write_bytes(b"y")
    path = place.fleet / "runs" / "default" / "gpt" / "attempts-0.jsonl"
    path.unlink()
    path.symlink_to(victim)
    assert place.post(piece(1, b"z", "attempts-0.jsonl")).status == 500
    assert victim.read_bytes() == b"y"


# Sizes and counts --------------------------------------------------------------------------------


def test_a_body_that_says_10_gb_is_refused_before_it_comes(place: Place) -> None:
    assert place.post(body=b"x", content_length=str(10 << 30)).status == 413


def test_a_body_without_a_length_is_cut_off(place: Place) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += 1 << 20
            yield bytes(1 << 20)

    found = place.client.post("/ship/v1/gpt", content=endless(), headers=HEADERS)
    assert found.status_code == 413
    assert place.files() == []


def test_a_bomb_is_not_unpacked(place: Place) -> None:
    bomb = zlib.compress(bytes(UNPACKED_BYTES * 4), 1)
    assert len(bomb) < BODY_BYTES
    assert place.post(body=bomb).status == 413
    twice = zlib.compress(zlib.compress(bytes(1 << 20)))
    assert place.post(body=twice).status == 400
    assert place.post(body=b"", content_encoding="gzip").status == 415
    assert UNPACKED_BYTES <= 1 << 25


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: body[:-1],
        lambda body: body + b"x",
        lambda body: b"\x00" + body,
        lambda body: zlib.compress(zlib.decompress(body)[:-1]),
        lambda body: zlib.compress(zlib.decompress(body) + b"\x01"),
        lambda body: zlib.compress(struct.pack("<HBxIQ", 9, 0, 1 << 31, 0) + b"x" * 99),
        lambda body: zlib.compress(struct.pack("<HBxIQ", 60000, 0, 0, 0) + b"x" * 99),
    ],
)
def test_a_damaged_batch_is_refused_whole(place: Place, damage: Callable[[bytes], bytes]) -> None:
    body = zlib.compress(packed([piece(0, b"abc"), piece(0, b"xyz", "attempts-0.jsonl")]))
    assert place.post(body=damage(body)).status == 400
    assert place.files() == []


def test_noise_is_refused(place: Place) -> None:
    chance = random.Random(3)
    for size in (0, 1, 15, 16, 17, 100, 5000):
        noise = chance.randbytes(size)
        try:
            pieces = list(unpacked(noise))
        except ProtocolError:
            pieces = []
        assert pieces == []
        assert place.post(body=noise).status == 400
    assert place.files() == []


def test_10_000_names_in_one_batch_are_refused(place: Place) -> None:
    many = [piece(0, b"", f"attempt-0/rank-{i}.ett") for i in range(10_000)]
    assert len(many) > MOST_PIECES
    assert place.post(*many).status == 400
    assert place.files() == []


def test_files_jobs_and_bytes_are_bounded(tmp_path: Path) -> None:
    limits = Limits(file_bytes=10, files_per_job=4, jobs_per_project=2, reserve_bytes=0)
    place = Place(tmp_path, limits)
    assert place.post(piece(0, b"0123456789")).status == 200
    assert place.post(piece(10, b"!")).status == 413
    for i in range(20):
        place.post(piece(0, b"x", f"attempt-0/rank-{i}.ett"))
    assert len(place.files()) == 4
    for i in range(20):
        place.post(piece(0, b"x"), job=f"job{i}")
    assert len({name.split("/")[1] for name in place.files()}) == 2


def test_a_full_disk_is_507_and_recovers(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "runs", Limits(reserve_bytes=1 << 60))
    with pytest.raises(InboxError, match="full") as error:
        inbox.take("default", "gpt", [piece(0, b"abc")])
    assert error.value.status == 507
    inbox.limits = Limits(reserve_bytes=0)
    assert inbox.take("default", "gpt", [piece(0, b"abc")]) == {NAME: 3}


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from torchett.serve.inbox import Inbox, InboxError, Limits
from torchett.ship.protocol import Piece

disk = Path(sys.argv[1])
(disk / "filler").write_bytes(bytes(700_000))
inbox = Inbox(disk / "runs", Limits(reserve_bytes=0))
data, name, at, refused = bytes(range(256)) * 2_000, "attempt-0/rank-0.ett", 0, 0
while at < len(data):
    piece = Piece(name=name, offset=at, data=data[at : at + 50_000])
    try:
        at = inbox.take("default", "gpt", [piece])[name]
    except InboxError as error:
        assert error.status == 507, error
        assert (refused := refused + 1) == 1
        (disk / "filler").unlink()
print(refused, (disk / "runs/default/gpt" / name).read_bytes() == data)
"""


def test_a_disk_that_is_really_full_takes_bytes_again_when_it_has_room(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ON_A_SMALL_DISK)
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = f"mount -t tmpfs -o size=1m none {disk} && {sys.executable} {script} {disk}"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("may not mount a small disk")
    done = subprocess.run(["unshare", "-m", "sh", "-c", inside], capture_output=True, text=True)
    if "mount:" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout.split() == ["1", "True"], done.stderr


def test_too_fast_is_429() -> None:
    rate = Rate(per_s=10, burst=20)
    assert [rate.wait_s("a", 10, 0.0) for _ in range(2)] == [0, 0]
    assert rate.wait_s("a", 10, 0.0) > 0
    assert rate.wait_s("b", 10, 0.0) == 0
    assert rate.wait_s("a", 10, 1.0) == 0


# Tokens ------------------------------------------------------------------------------------------


def test_without_tokens_only_this_machine_writes(tmp_path: Path) -> None:
    place = Place(tmp_path, loopback=False)
    assert place.post(piece(0, b"x")).status == 401
    assert place.client.get("/jobs").status_code == 401


def test_a_page_of_another_site_cannot_write(place: Place) -> None:
    assert place.post(piece(0, b"x"), host="evil.example:8642").status == 403
    assert place.client.get("/jobs", headers={"host": "evil.example"}).status_code == 403
    plain = place.client.post("/ship/v1/gpt", content=b"", headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    assert place.files() == []


def test_a_token_writes_its_own_project_and_no_other(place: Place) -> None:
    a = add_token(place.state, "a", "write", "alpha")
    b = add_token(place.state, "b", "write", "beta")
    assert place.post(piece(0, b"from a"), token=a).status == 200
    assert place.post(piece(0, b"from b"), token=b).status == 200
    assert place.bytes(project="alpha") == b"from a"
    assert place.bytes(project="beta") == b"from b"
    sizes = place.client.get("/ship/v1/gpt", headers={"authorization": f"Bearer {b}"}).json()
    assert sizes == {"sizes": {NAME: 6}}
    assert place.client.get("/jobs", headers={"authorization": f"Bearer {b}"}).status_code == 403


def test_forged_and_revoked_tokens_are_refused(place: Place) -> None:
    good = add_token(place.state, "a", "write", "alpha")
    read = add_token(place.state, "r", "read", None)
    for bad in ("", "x", good[:-1], good + "x", good.lower(), "' OR 1=1 --", "é" * 10, read):
        if bad.isascii():
            assert place.post(piece(0, b"x"), token=bad or " ").status in (401, 403), bad
    assert place.post(piece(0, b"x")).status == 401  # there are tokens now
    assert place.files() == []
    place.post(piece(0, b"x"), token=good)
    revoke_token(place.state, "a")
    place.ingest._access._known.clear()
    assert place.post(piece(1, b"y"), token=good).status == 401
    assert place.bytes(project="alpha") == b"x"
    stored = place.state.rows("SELECT * FROM tokens")
    assert all(good not in map(str, tuple(row)) for row in stored)


def test_a_read_token_opens_the_pages(place: Place) -> None:
    token = add_token(place.state, "r", "read", None)
    assert place.client.get("/jobs").status_code == 401
    assert place.client.get("/jobs", auth=("any", token)).status_code == 200
    assert place.client.get("/jobs", auth=("any", token + "x")).status_code == 401

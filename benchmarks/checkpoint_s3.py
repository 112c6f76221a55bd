"""Checkpoints in a real S3 server (moto's): a stall, 503, a lost part, and a thousand ranks.

The server stalls for minutes while the job trains on; it answers 503; it loses a part of a file.
Later saves have to be durable, and nothing that is listed may be damaged. Then a commit of many
ranks' files, as the server counts its requests: the files lie there before, so that only what rank
0 does beside the data is timed. Beside each commit stands the server's own share of it: the same
listing and the same put, sent with `http.client` and not parsed.
"""

import http.client
import logging
import os
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests" / "levers" / "checkpoint"
sys.path.insert(0, str(TESTS))

WIDTH = 1 << 17  # 25 MB of state: several parts


class Lines(logging.Handler):
    """Warnings of torchett."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def faulty(fault: str, seconds: float) -> dict[str, Any]:
    """Train and save, then once more while the server has a fault, then once more after it."""
    from faulty_s3 import faulty_s3
    from trainer import Training

    from torchett.levers.checkpoint import Checkpointer
    from torchett.levers.checkpoint.stored.catalog import entries, verify
    from torchett.levers.checkpoint.stored.storage import open_storage

    lines = Lines()
    logging.getLogger("torchett").addHandler(lines)
    with faulty_s3() as server:
        training = Training(WIDTH)
        ckpt = Checkpointer(server.address, every=10**9, upload="thread", snapshot_every=None)
        training.run(ckpt, 1)
        ckpt.save(0, training.state, wait=True)
        server.fault = fault
        began, step, longest_s = time.monotonic(), 1, 0.0
        ckpt.save(step, training.state)
        while time.monotonic() - began < seconds or ckpt._met.saves.busy:  # type: ignore[union-attr]
            if time.monotonic() - began >= seconds and server.fault is not None:
                server.heal()
            step += 1
            training.step()
            called = time.monotonic()
            ckpt.step(step, training.state)
            longest_s = max(longest_s, time.monotonic() - called)
            time.sleep(seconds / 300)
        server.heal()
        took_s, this = time.monotonic() - began, ckpt.durable.get("local")
        ckpt.save(step + 1, training.state, wait=True)
        last = ckpt.durable.get("local")
        ckpt.close(final=False)
        listed = entries(open_storage(server.address))
        bad = sum(bool(verify(entry)) for entry in listed)
    logging.getLogger("torchett").removeHandler(lines)
    return {
        "fault": fault if fault != "stall" else f"stall of {seconds:.0f} s",
        "requests that met it": server.failed[fault],
        "steps meanwhile": step - 1,
        "longest call s": round(longest_s, 3),
        "save over after s": round(took_s, 1),
        "warnings": len(lines.said),
        "first": (lines.said or ["—"])[0][:120],
        "this save durable": this == 1,
        "next save durable": last == step + 1,
        "listed": len(listed),
        "of these bad": bad,
    }


def put_files(storage: Any, step: int, ranks: int) -> tuple[str, Any]:
    """A file of each rank, as they lie there before rank 0 commits; and their manifest."""
    from torchett.levers.checkpoint.stored.manifest import FileSum
    from torchett.levers.checkpoint.upload.commit import make_manifest

    place = storage.place(step, "5f3a9c01")
    storage.make(place)
    names = [f"__{rank}_0.distcp" for rank in range(ranks)]
    for name in names:
        with storage.write(f"{place}/{name}") as stream:
            stream.write(b"data")
    told = FileSum(size=4, crc32=zlib.crc32(b"data"))
    return place, make_manifest(step, ranks, ranks, dict.fromkeys(names, told), None, ())


def store_alone_s(storage: Any, place: str, data: bytes) -> float:
    """Seconds of a raw listing and a raw put, as large as a commit's."""
    root = Path(getattr(storage, "path", "/"))
    if storage.root.startswith("s3://"):
        bucket, _, job = storage.root.removeprefix("s3://").partition("/")
        address = storage._fs.endpoint_url or storage._fs.client_kwargs["endpoint_url"]
        began = time.monotonic()
        link = http.client.HTTPConnection(address.partition("://")[2])
        query = f"list-type=2&prefix={job}/{place}/&delimiter=/"
        for verb, path, body in (
            ("GET", f"/{bucket}?{query}", None),
            ("PUT", f"/{bucket}/{job}/raw", data),
        ):
            link.request(verb, path, body)
            link.getresponse().read()
    else:
        began = time.monotonic()
        with os.scandir(root / place) as found:
            assert sum(entry.stat().st_size for entry in found)
        with open(root / "raw", "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    return time.monotonic() - began


def many_ranks(where: str, ranks: int, requests: "Counter[str] | None") -> dict[str, Any]:
    """The slowest of four commits, with `latest` and retention, when two are kept."""
    from torchett.levers.checkpoint.stored.retention import Keep, retain
    from torchett.levers.checkpoint.stored.storage import open_storage
    from torchett.levers.checkpoint.upload import commit

    storage = open_storage(where)
    took, sent, after, alone = [], [], [], []
    for step in (1, 3, 5, 7):
        place, made = put_files(storage, step, ranks)
        alone.append(store_alone_s(storage, place, made.to_bytes()))
        if requests is not None:
            requests.clear()
        began = time.monotonic()
        name = commit.commit(storage, place, made)
        took.append(time.monotonic() - began)
        commit.move_latest(storage, name)
        retain(storage, Keep(last=2), committed=name)
        after.append(time.monotonic() - began - took[-1])
        sent.append(requests.total() if requests is not None else 0)
    return {
        "store": where.partition("://")[0] if "://" in where else "folder",
        "ranks": ranks,
        "commit s": round(max(took), 3),
        "the server alone s": round(alone[took.index(max(took))], 3),
        "latest and retention s": round(max(after), 3),
        "requests beside the data": max(sent) if requests is not None else "—",
    }


def main() -> None:
    from _table import Bar, Column, Report, Sheet, options
    from faulty_s3 import faulty_s3

    parser = options(__doc__ or "")
    parser.add_argument("--stall-s", type=float, help="length of the stall (300; --quick: 5)")
    parser.add_argument("--ranks", type=int, default=1000)
    args = parser.parse_args()
    stall_s = args.stall_s or (5.0 if args.quick else 300.0)
    wide = []
    with tempfile.TemporaryDirectory() as folder:
        wide.append(many_ranks(folder, args.ranks, None))
    with faulty_s3() as server:
        wide.append(many_ranks(server.address, args.ranks, server.requests))
    rows = [faulty("503", 5.0), faulty("lose", 2.0), faulty("stall", stall_s)]
    report = Report("checkpoints in S3", facts={"server": "moto, on this machine"})
    report.sheets = [
        Sheet("many ranks", [Column(name, name, str) for name in wide[0]], wide),
        Sheet("faults", [Column(name, name, str) for name in rows[0]], rows),
    ]
    slowest = max(row["commit s"] for row in wide)
    most = wide[-1]["requests beside the data"]
    bad = sum(row["of these bad"] for row in rows)
    later = sum(row["next save durable"] for row in rows)
    report.bars = [
        Bar("commit", "≤ 1 s", f"{slowest:.2f} s", slowest <= 1),
        Bar("requests beside the data", "≤ 20", str(most), most <= 20),
        Bar("the next save is durable", f"{len(rows)}", str(later), later == len(rows)),
        Bar("bad ones listed", "0", str(bad), bad == 0),
        Bar("lines", "≤ 1 a fault", str(max(r["warnings"] for r in rows)),
            max(r["warnings"] for r in rows) <= 1),
    ]  # fmt: skip
    report.show(args.json)


if __name__ == "__main__":
    main()

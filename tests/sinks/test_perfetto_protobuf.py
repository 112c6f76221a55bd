"""The protobuf trace, decoded by Perfetto's own classes, sums to the ledger."""

import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _histories import Long, Wide

from torchett.cli.main import main
from torchett.runs.reader import RunReader

pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture(scope="module", params=["wide", "long"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / request.param
    if request.param == "wide":
        Wide(ranks=70, attempts=3).write_records(folder)
    else:
        Long(steps=900, restarts=3).write_records(folder)
    return folder


def test_slices_sum_to_the_ledger(run: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(
        main, ["export", str(run), "--format", "perfetto-protobuf", "-o", str(tmp_path / "t")]
    )
    assert said.exit_code == 0, said.output
    ledger = RunReader(run).poll().ledger()
    trace = pb2.Trace()
    trace.ParseFromString((tmp_path / "t").read_bytes())
    names: dict[int, str] = {}
    tracks: dict[int, str] = {}
    open_: dict[int, list[tuple[str, int]]] = defaultdict(list)
    sums: Counter[str] = Counter()
    steps = 0
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor.name
        for one in packet.interned_data.event_names:
            names[one.iid] = one.name
        event = packet.track_event
        if not packet.HasField("track_event") or event.track_uuid == 1:
            continue
        if event.type == event.TYPE_SLICE_BEGIN:
            open_[event.track_uuid].append((names[event.name_iid], packet.timestamp))
            steps += any(one.HasField("uint_value") for one in event.debug_annotations)
        elif event.type == event.TYPE_SLICE_END:
            name, began = open_[event.track_uuid].pop()
            sums[name] += packet.timestamp - began
    assert {n: ns for n, ns in sums.items() if ns} == {
        n: ns for n, ns in ledger.accounts.items() if ns
    }
    assert not any(open_.values())
    assert sum(name.startswith("rank ") for name in tracks.values()) == ledger.ranks
    assert steps > 0


def test_it_is_not_written_to_a_terminal(run: Path) -> None:
    said = CliRunner().invoke(main, ["export", str(run), "--format", "perfetto-protobuf"])
    assert said.exit_code == 2
    assert "-o FILE" in said.output

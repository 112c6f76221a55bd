"""From the checkpoint of four ranks to a version that answers with torch alone."""

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from four_ranks_save import plain
from publish_shelf import Shelf

from torchett.levers.publish.registry.registry import Registry
from torchett.levers.publish.serving.fetched import fetch
from torchett.levers.publish.serving.http import listen
from torchett.levers.publish.serving.snapshot import Snapshot, SnapshotError


@pytest.fixture(scope="module")
def snapshot(shelf: Shelf) -> Path:
    registry = Registry(shelf.registry)
    folder = shelf.folder / "snapshot"
    fetch(registry, registry.find("dlrm@1"), folder)
    return folder


def inputs(batch: int) -> tuple[torch.Tensor, ...]:
    from dlrm.publishing import inputs_of

    return inputs_of("tiny", batch)


def test_answers_are_those_of_the_model_that_was_trained(snapshot: Path) -> None:
    model, trained = Snapshot(snapshot), plain(seed=1).eval()
    for batch in (1, 2, 5, 33, 4096):
        theirs = trained(*inputs(batch)).detach()
        assert (model(*inputs(batch)) - theirs).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d, i, o: (d[:0], i, o[:, :0]), "'dense': expected 1 to 4096 in dimension 0"),
        (lambda d, i, o: (d.repeat(1366, 1), i, o), "expected 1 to 4096 .* found 4098"),
        (lambda d, i, o: (d.double(), i, o), "expected torch.float32, found torch.float64"),
        (lambda d, i, o: (d, i.int(), o), "'ids': expected torch.int64, found torch.int32"),
        (lambda d, i, o: (d[:, :12], i, o), "expected 13 in dimension 1, found 12"),
        (lambda d, i, o: (d, i, o[:, :2]), "'offsets': batch is 2, but it is 3 in input 'dense'"),
        (lambda d, i, o: (d, i[0], o), r"expected shape \[8, ids\]"),
        (lambda d, i, o: (d, i), "expected 3 inputs"),
        (lambda d, i, o: (d, i + 10**6, o), "not in the valid range"),
    ],
)
def test_what_was_not_declared_is_refused_with_a_sentence(
    snapshot: Path, change: object, sentence: str
) -> None:
    model = Snapshot(snapshot)
    with pytest.raises(SnapshotError, match=sentence) as refused:
        model(*change(*inputs(3)))
    assert "\n" not in str(refused.value)


def test_a_fresh_process_needs_torch_alone_and_runs_no_compiler(
    snapshot: Path, tmp_path: Path
) -> None:
    for name in ("g++", "gcc", "c++", "cc", "clang++"):
        fake = tmp_path / name
        fake.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n")
        fake.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-I", str(snapshot / "load.py"), "--check"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told["alone"] is True
    assert told["batches"] == [1, 2, 3, 7, 64, 1000, 4096]
    assert told["max_error"] <= 1e-6
    assert told["load_s"] < 2.5
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("torch", "9.1.0", "published with torch 9.1.0, this is 2"),
        ("isa", "aarch64", "published for aarch64, this is x86_64"),
    ],
)
def test_a_package_for_a_newer_host_is_refused_with_one_line(
    snapshot: Path, tmp_path: Path, key: str, value: str, sentence: str
) -> None:
    shutil.copytree(snapshot, tmp_path / "new")
    told = json.loads((tmp_path / "new/snapshot.json").read_text()) | {key: value}
    (tmp_path / "new/snapshot.json").write_text(json.dumps(told))
    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "new/load.py")], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_old_processor_is_named_with_what_it_lacks() -> None:
    from torchett.levers.publish.serving import snapshot as loading

    told = {"torch": "2.0.0", "isa": "x86-64-v4"}
    with pytest.raises(SnapshotError, match=r"not \(no avx512bw, .*lower isa"):
        loading._refuse_unfit(told, "2.13.0", loading._V3)
    loading._refuse_unfit(told, "2.13.0", loading._V4)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs binutils")
def test_the_code_has_no_instructions_above_the_floor(snapshot: Path, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(snapshot / "model.pt2") as package:
        name = next(name for name in package.namelist() if name.endswith(".so"))
        package.extract(name, tmp_path)
    code = subprocess.run(["objdump", "-d", str(tmp_path / name)], capture_output=True, text=True)
    assert "%ymm" in code.stdout
    assert "%zmm" not in code.stdout


def test_a_republish_with_other_weights_compiles_nothing(shelf: Shelf) -> None:
    registry = Registry(shelf.registry)
    first, second = registry.find("dlrm@1"), registry.find("dlrm@live")
    assert second.label == "dlrm@2"
    assert first.files["model.pt2"] == second.files["model.pt2"]
    assert first.files["weights.safetensors"] != second.files["weights.safetensors"]
    assert second.timings["package"] < first.timings["package"] / 10
    assert (first.anchor["ranks"], second.anchor["ranks"]) == (4, 1)
    told = json.loads(shelf.ett("serve-check", "dlrm@2", "--json").stdout)
    assert (told["alone"], told["version"]) == (True, "dlrm@2")


def test_a_server_answers_and_refuses_with_the_sentence(snapshot: Path) -> None:
    model = Snapshot(snapshot)
    server = listen(model, "dlrm@1", "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = [one["name"] for one in model.told["inputs"]]

    def ask(batch: dict[str, object]) -> dict[str, object]:
        url = f"http://127.0.0.1:{server.server_address[1]}/predict"
        asked = urllib.request.Request(url, json.dumps(batch).encode())
        try:
            with urllib.request.urlopen(asked) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.load(error)}

    try:
        batch = {name: one.tolist() for name, one in zip(names, inputs(2), strict=True)}
        answers = torch.tensor(ask(batch)["answers"])
        assert torch.allclose(answers[0], model(*inputs(2)), atol=1e-6)
        refused = ask({**batch, "dense": []})
        assert refused["status"] == 422
        assert "'dense'" in str(refused["error"])
        assert ask({"dense": []})["error"] == "expected the inputs dense, ids, offsets by name"
    finally:
        server.shutdown()
        server.server_close()

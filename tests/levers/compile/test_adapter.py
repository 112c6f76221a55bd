"""Reading and writing torch's compile caches."""

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from torchett.levers.compile.adapter import caches, winners
from torchett.levers.compile.cache.archive import entry, merge
from torchett.levers.compile.cache.node import LoadResult
from torchett.levers.compile.cache.session import Session


def test_torch_reads_only_one_save_of_a_megacache_and_we_read_both() -> None:
    import torch
    from torch.compiler._cache import CacheArtifactManager

    CacheArtifactManager._ensure_cache_artifacts_registered()
    with CacheArtifactManager.with_fresh_cache():
        CacheArtifactManager.record_artifact("inductor", "a" * 52, b"first")
        torch.compiler.save_cache_artifacts()
        CacheArtifactManager.record_artifact("inductor", "b" * 52, b"second")
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        assert len(caches.seen_artifacts()) == caches.seen_count() == 2
    stock = CacheArtifactManager.deserialize(saved[0])
    assert stock is not None
    ours = [(one.kind, one.key, one.content) for one in caches.megacache(saved[0])]
    assert len(ours) == 2
    if len(stock["inductor"]) == 2:
        pytest.skip("this torch keeps both")
    merged = merge([[entry(kind, key, content)] for kind, key, content in ours])
    assert {one.data() for one in merged} == {b"first", b"second"}


def test_artifacts_go_where_torch_looks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    caches.install_artifact("inductor", "fabc" + "d" * 48, b"not even a pickle")
    caches.install_artifact("aot_autograd", "a" * 52, b"entry")
    caches.install_artifact("autotune", f"ab/{'c' * 64}.best_config", b"{}")
    written = {
        path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*") if path.is_file()
    }
    assert written == {"fxgraph", "aotautograd", "ab"}
    with pytest.raises(caches.MissingError):
        caches.install_artifact("precompile", "x", b"")


@pytest.mark.parametrize(("rank", "expected"), [(0, b"of rank 0"), (1, b"of rank 1"), (7, None)])
def test_each_rank_gets_a_profile_under_its_own_key(
    rank: int, expected: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is job:rank:tag; a rank without a profile gets that of another rank of its job."""
    import torch

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    profiles = []
    for name, data in (
        ("other:7:", b"of another job"),
        ("nightly:0:", b"of rank 0"),
        ("nightly:1:", b"of rank 1"),
    ):
        file = tmp_path / f"profile-{len(profiles)}"
        file.write_bytes(data)
        profiles.append((name, str(file)))
    with torch.compiler.config.patch(job_id="nightly"):
        Session("unused", {})._install_profile(LoadResult(pgo=tuple(profiles)))
    (written,) = tmp_path.glob("dynamo/code_state_nightly_*.pkl")
    assert f"nightly_{rank}_" in written.name
    assert written.read_bytes() == (expected or b"of rank 0")


# Winners: torch's own bundles, with stand-ins for what only a GPU can make ----------------------


class Config:
    """Like Triton's class, whose pickle drops other attributes."""

    def __init__(self, block: int) -> None:
        self.kwargs, self.found_by_coordesc = {"BLOCK": block}, False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.kwargs = state["kwargs"]


class Kernel:
    def __init__(self, name: str) -> None:
        self.hash, self.cubin_raw = name, b"raw"


class Result:
    def __init__(self, name: str, block: int) -> None:
        self.kernel, self.config = Kernel(name), Config(block)


class Tuner:
    """The parts of a CachingAutotuner that a bundle contains."""

    def __init__(self, filename: str, results: list[Result]) -> None:
        self.filename, self.compile_results = filename, results
        self.triton_meta: dict[str, Any] = {"device": 0}
        self.inductor_meta: dict[str, Any] = {"coordinate_descent_tuning": True}


class Launcher:
    def __init__(self, name: str, config: Config) -> None:
        self.cache_hash, self.config = name, config


class Graph:
    def __init__(self, code: str, bundle: Any) -> None:
        self.source_code, self._triton_bundle = code, bundle


SOURCE = "def triton_poi_0(x):\n    pass\n"
USER = "def my_kernel(x):\n    pass\n"
CODE = (
    f"triton_poi_0 = async_compile.triton('triton_poi_0', {SOURCE!r}, device_str='cuda')\n"
    f"my_kernel_0 = async_compile.triton('my_kernel', {USER!r}, device_str='cuda')\n"
)


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A graph that calls two kernels, bundled with their configurations and with candidates."""
    from torch._inductor.async_compile import CompiledTritonKernels
    from torch._inductor.triton_bundler import (
        StaticallyLaunchedAutotuner,
        TritonBundle,
        TritonKernelArtifact,
        TritonKernelArtifacts,
    )

    def kernel(name: str, function: str) -> Any:
        files = [TritonKernelArtifact(f"{function}.cubin", b"cubin")]
        return TritonKernelArtifacts(name, 0, files)

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(winners, "_tuned", winners._Tuned())
    ours = Tuner("/cache/ab/cone.py", [Result("one", 1), Result("two", 2)])
    candidate = Tuner("/cache/ab/cmm.py", [Result("mm", 1)])
    bundle = TritonBundle(
        [
            kernel("one", "triton_poi_0"),
            kernel("two", "triton_poi_0"),
            kernel("mm", "triton_mm"),
            kernel("mm2", "triton_mm"),
            kernel("user-won", "my_kernel"),
            kernel("user-lost", "my_kernel"),
        ],
        [
            StaticallyLaunchedAutotuner(CompiledTritonKernels.key(SOURCE), "triton_poi_0", ours),
            StaticallyLaunchedAutotuner("key of a candidate", "triton_mm", candidate),
        ],
    )
    return pickle.dumps(Graph(CODE, bundle))


def kept(content: bytes) -> tuple[list[str], list[list[str]]]:
    bundle = pickle.loads(winners.only(content))._triton_bundle
    return (
        sorted(one.kernel_hash for one in bundle.kernel_artifacts),
        [[r.kernel.hash for r in one.kernel.compile_results] for one in bundle.static_autotuners],
    )


def test_candidates_that_the_code_does_not_call_are_left_out(bundled: bytes) -> None:
    assert kept(bundled) == (["one", "two", "user-lost", "user-won"], [["one", "two"]])


def test_only_the_winning_configuration_is_stored(bundled: bytes) -> None:
    tuner: Any = Tuner("/elsewhere/ab/cone.py", [])
    rivals = [Launcher("one", Config(1)), Launcher("two", Config(2))]
    tuner.launchers = rivals[1:]
    winners._note_choice(tuner, rivals)
    user: Any = Tuner("/cache/cd/cuser.py", [])
    rivals = [Launcher("user-won", Config(1)), Launcher("user-lost", Config(2))]
    user.launchers = rivals[:1]
    winners._note_choice(user, rivals)
    assert kept(bundled) == (["two", "user-won"], [["two"]])
    (one,) = pickle.loads(winners.only(bundled))._triton_bundle.static_autotuners
    assert one.kernel.inductor_meta["dynamic_scale_rblock"] is False
    assert one.kernel.compile_results[0].kernel.cubin_raw is None


def test_a_winner_of_coordinate_descent_is_added_and_not_searched_again(
    bundled: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "triton/0/best"
    folder.mkdir(parents=True)
    (folder / "triton_poi_0.cubin").write_bytes(b"the best")
    (folder / "__grp__triton_poi_0.json").write_text(f'{{"child": "{folder}/triton_poi_0.cubin"}}')
    tuner = Tuner("/cache/ab/cone.py", [Result("one", 1), Result("two", 2)])
    best = Result("best", 64)
    winners._note_descent(
        tuner, Launcher("two", Config(2)), Launcher("best", best.config), [Result("try", 3), best]
    )
    assert kept(bundled) == (["best", "user-lost", "user-won"], [["best"]])
    bundle = pickle.loads(winners.only(bundled))._triton_bundle
    settled = bundle.static_autotuners[0].kernel
    assert settled.inductor_meta["coordinate_descent_tuning"] is False
    assert settled.compile_results[0].config.kwargs == {"BLOCK": 64}
    (found,) = [one for one in bundle.kernel_artifacts if one.kernel_hash == "best"]
    files = {one.filename: one.payload for one in found.artifacts}
    assert files["triton_poi_0.cubin"] == b"the best"
    assert files["__grp__triton_poi_0.json"] == b'{"child": "[REPLACE]/triton_poi_0.cubin"}'


def test_a_graph_that_cannot_be_parsed_stays_unchanged(bundled: bytes) -> None:
    for content in (b"no pickle but triton", pickle.dumps(Graph("not (python triton", None))):
        assert winners.only(content) == content
    other = pickle.dumps(Graph("x = 1  # no triton kernel", pickle.loads(bundled)._triton_bundle))
    assert winners.only(other) == other


def test_a_running_tuning_is_reported() -> None:
    def choose(tuner: Any) -> None:
        assert winners.tuning()
        tuner.launchers = tuner.launchers[:1]

    tuner: Any = Tuner("/cache/ab/cone.py", [])
    tuner.launchers = [Launcher("one", Config(1)), Launcher("two", Config(2))]
    winners._around_choice(choose)(tuner)
    assert not winners.tuning()
    assert winners.last_tuned() > 0
    assert winners._tuned.losers >= {"two"}

"""Versions are made once and never change; aliases keep their whole history."""

import json
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from torchett.cli.main import main
from torchett.levers.publish.errors import RegistryError
from torchett.levers.publish.registry.registry import Model, Registry
from torchett.levers.publish.registry.version import Version, version_key
from torchett.store import fsspec_store

pytest.importorskip("fsspec")


def draft(key: str, *, at_s: float = 100.0, step: int = 39) -> Version:
    return Version(name="dlrm", version=0, key=key, files={}, created_s=at_s, anchor={"step": step})


@pytest.fixture(params=["folder", "memory"])
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(fsspec_store, "_SETTLE_S", 0.02)  # memory answers sooner than a bucket
    url = f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "registry")
    return Registry(url).model("dlrm")


def publish(model: Model, key: str, folder: Path, *, code: str = "code") -> Version:
    folder.mkdir(exist_ok=True)
    (folder / "weights").write_text(f"weights of {key}")
    (folder / "code").write_text(code)
    return model.register(draft(key), {"weights": folder / "weights", "code": folder / "code"})


def test_one_key_is_one_version_and_what_two_share_lies_once(model: Model, tmp_path: Path) -> None:
    first, second = publish(model, "a", tmp_path / "a"), publish(model, "b", tmp_path / "b")
    assert (first.label, second.label) == ("dlrm@1", "dlrm@2")
    assert publish(model, "a", tmp_path / "again").version == 1
    assert first.files["code"] == second.files["code"]
    assert len(model.store.names("dlrm/files/sha256")) == 3
    assert model.store.names("dlrm/files/uses") == []


def test_of_many_that_publish_at_once_one_makes_the_version(model: Model, tmp_path: Path) -> None:
    got: list[tuple[str, int]] = []

    def work(number: int) -> None:
        key = f"key-{number % 3}"
        got.append((key, publish(model, key, tmp_path / str(number)).version))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(got) == 9
    assert len(set(got)) == 3
    assert sorted(version.version for version in model.versions()) == [1, 2, 3]


def test_an_alias_moves_and_its_history_says_what_was_live_when(
    model: Model, tmp_path: Path
) -> None:
    """
    1 ─ live at 10      2 ─ live at 20      rollback at 30: 1      a clock that jumped back: 2
    """
    for key in ("a", "b"):
        publish(model, key, tmp_path / key)
    model.promote(1, "live", why="published", now_s=10)
    model.promote(2, "live", why="published", now_s=20)
    model.rollback("live", now_s=30)
    model.promote(2, "live", why="promoted", now_s=3)
    assert [(flip.version, flip.at_s) for flip in model.aliases.history("live")] == [
        (1, 10), (2, 20), (1, 30), (2, 30),
    ]  # fmt: skip
    assert [next(model.aliases.live(at), None) for at in (9.0,)] == [None]
    assert [next(iter(model.aliases.live(at))).version for at in (10, 19, 20, 29, 31)] == [
        1, 1, 2, 2, 2,
    ]  # fmt: skip


def test_rolling_back_twice_goes_two_back_and_not_forth(model: Model, tmp_path: Path) -> None:
    for key in ("a", "b", "c"):
        version = publish(model, key, tmp_path / key)
        model.promote(version.version, "live", why="published", now_s=1)
    assert model.rollback("live", now_s=2).version == 2
    assert model.rollback("live", now_s=3).version == 1
    with pytest.raises(RegistryError, match="nothing to roll back to"):
        model.rollback("live", now_s=4)


def test_an_alias_is_never_on_a_version_that_is_not_whole(model: Model, tmp_path: Path) -> None:
    publish(model, "a", tmp_path / "a")
    version = publish(model, "b", tmp_path / "b")
    model.promote(1, "live", why="published", now_s=1)
    model.store.delete(f"dlrm/files/sha256/{version.files['weights'].sha256}")
    with pytest.raises(RegistryError, match="dlrm@2 is not promoted: weights is missing"):
        model.promote(2, "live", why="promoted", now_s=2)
    with pytest.raises(RegistryError, match="no version 3"):
        model.promote(3, "live", why="promoted", now_s=2)
    current = model.aliases.current("live")
    assert current is not None
    assert current.version == 1


def test_damage_is_found(model: Model, tmp_path: Path) -> None:
    version = publish(model, "a", tmp_path / "a")
    assert model.problems(version, read=True) == []
    name = f"dlrm/files/sha256/{version.files['code'].sha256}"
    model.store.write(name, b"edoc")
    assert model.problems(version) == []
    assert model.problems(version, read=True) == ["code has other bytes than were published"]
    changed = json.loads(model.store.read("dlrm/versions/00000001.json", limit=10_000))
    changed["anchor"]["step"] = 40
    model.store.write("dlrm/versions/00000001.json", json.dumps(changed).encode())
    with pytest.raises(RegistryError, match="does not match its own hash"):
        model.version(1)


def test_gc_keeps_the_last_the_live_and_what_it_could_be_rolled_back_to(
    model: Model, tmp_path: Path
) -> None:
    for number in range(1, 7):
        publish(model, f"k{number}", tmp_path / str(number))
    for number in (2, 3):
        model.promote(number, "live", why="promoted", now_s=number)
    assert model.collect(keep=1, now_s=time.time(), dry_run=True).versions == [1, 4, 5]
    assert len(list(model.versions())) == 6
    gone = model.collect(keep=1, now_s=time.time())
    assert gone.versions == [1, 4, 5]
    assert len(gone.files) == 3
    assert [version.version for version in model.versions()] == [2, 3, 6]
    assert publish(model, "k1", tmp_path / "1").version == 7, "numbers are not used twice"
    with pytest.raises(RegistryError, match=r"dlrm@1 was removed by gc"):
        model.version(1)
    for version in model.versions():
        assert model.problems(version, read=True) == []


def test_gc_leaves_what_a_publisher_is_about_to_use(model: Model, tmp_path: Path) -> None:
    version = publish(model, "a", tmp_path / "a")
    blob = version.files["weights"]
    with model.blobs.using([blob], now_s=1000.0):
        assert blob.sha256 not in model.blobs.collect(set(), now_s=1001.0)
    assert blob.sha256 in model.blobs.collect(set(), now_s=1002.0)


def test_the_key_is_made_of_anchor_recipe_torch_and_instruction_set() -> None:
    parts = {"anchor": "a", "recipe": "b", "torch": "2.13.0", "isa": "x86-64-v3"}
    keys = {version_key(*{**parts, part: "other"}.values()) for part in parts}
    assert len(keys | {version_key(*parts.values())}) == 5


def test_the_commands(tmp_path: Path) -> None:
    url = str(tmp_path / "registry")
    model = Registry(url).model("dlrm")
    for key in ("a", "b"):
        publish(model, key, tmp_path / key)

    def ett(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(main, ["publish", *words, "--registry", url])
        assert done.exit_code == code, done.output
        return done.output

    ett("promote", "dlrm@1", "live")
    between = time.time()
    time.sleep(0.01)
    moved = json.loads(ett("promote", "dlrm@2", "live", "--json"))
    assert moved == {"alias": "dlrm@live", "version": "dlrm@2"}
    assert "dlrm@1" in ett("rollback", "dlrm@live")
    assert json.loads(ett("show", "dlrm@live", "--json"))["version"] == 1
    then = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(between)) + f"{between % 1:.6f}"[1:]
    row = json.loads(ett("ls", "dlrm", "--at", then, "--json"))["models"][0]
    assert [(flip["alias"], flip["version"]) for flip in row["aliases"]] == [("live", 1)]
    history = json.loads(ett("ls", "--history", "--json"))["models"][0]["history"]
    assert sorted((flip["number"], flip["version"]) for flip in history) == [(1, 1), (2, 2), (3, 1)]
    assert "dlrm@1" in ett("ls")
    assert "dlrm@1  ok" in ett("verify", "dlrm@live")
    assert "nothing" in ett("gc", "--dry-run")
    ett("promote", "dlrm@2", "next")
    ett("promote", "dlrm@1", "next")
    moved = json.loads(ett("rollback", "dlrm@next", "--json"))
    assert moved == {"alias": "dlrm@next", "version": "dlrm@2"}
    assert "NAME@ALIAS" in ett("rollback", "dlrm", code=2)
    assert "no model 'gpt'" in ett("show", "gpt", code=2)
    assert "no model 'gpt': it has dlrm" in ett("show", "gpt@live", code=2)
    assert "dlrm has no alias 'old': it has live, next" in ett("show", "dlrm@old", code=2)
    assert ett("gc", "dlrm", "--keep", "5") == "dlrm: nothing removed\n"
    assert "expected a time" in ett("ls", "--at", "yesterday", code=2)
    Path(url, f"dlrm/files/sha256/{model.version(2).files['code'].sha256}").write_text("x")
    assert "code has 1 bytes" in ett("verify", "dlrm@2", code=1)

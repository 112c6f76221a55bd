"""What memory is left: of the machine, or of the tightest group around a process."""

from pathlib import Path

import pytest

from torchett.record.process import memory


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of groups, where the process is in one of the first and one of the second version."""
    paths = ["3:cpuset:/x", "2:cpu,memory:/job", "0::/job/step"]
    (tmp_path / "cgroup").write_text("".join(f"{path}\n" for path in paths))
    usual = open

    def opened(path: str, **how: str) -> object:
        return usual(tmp_path / "cgroup" if path == "/proc/self/cgroup" else path, **how)

    monkeypatch.setattr(memory, "_ROOT", str(tmp_path / "fs"))
    monkeypatch.setattr("builtins.open", opened)
    return tmp_path / "fs"


def write(folder: Path, **numbers: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in numbers.items():
        (folder / f"memory.{name}").write_text(f"{number}\n")


def test_without_a_group_it_is_the_machines(groups: Path) -> None:
    free = memory.number_in("/proc/meminfo", "MemAvailable:") << 10
    assert memory.available_bytes() == pytest.approx(free, rel=0.2)


def test_the_tightest_of_the_groups_around_it_counts(groups: Path) -> None:
    write(groups / "job" / "step", max="max", current=5)
    write(groups / "job", max=1000, current=700, stat="anon 1\ninactive_file 50")
    assert memory.available_bytes() == 350
    write(groups / "job" / "step", max=100, current=90, stat="inactive_file 0")
    assert memory.available_bytes() == 10


def test_a_group_of_the_first_version_counts_too(groups: Path) -> None:
    write(groups / "memory" / "job", limit_in_bytes=1000, usage_in_bytes=900)
    write(groups / "memory" / "job", stat="inactive_file 1\ntotal_inactive_file 30")
    assert memory.available_bytes() == 130


def test_a_container_that_sees_its_group_as_the_root_has_its_bound(groups: Path) -> None:
    write(groups, max=1000, current=1200)
    assert memory.available_bytes() == 0

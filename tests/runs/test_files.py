"""Files that a user named: links are followed, devices and pipes stay what they are."""

import os
import stat
import threading
from pathlib import Path

import pytest

from torchett.model.errors import RunError
from torchett.runs.output_files import expect_writable, write_bytes, write_text_file


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "out", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    write_text_file(link, ["new\n"])
    assert link.is_symlink()
    assert target.read_text() == "new\n"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_a_link_to_nothing_yet_makes_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("later")
    expect_writable(tmp_path / "link")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "later").read_bytes() == b"new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_text_file(pipe, ["one\n", "two\n"])
    reader.join(10)
    assert read == ["one\ntwo\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_to_and_says_when_it_is_full(tmp_path: Path) -> None:
    device = tmp_path / "full"  # by a link: /dev itself must not pay for a defect
    device.symlink_to("/dev/full")
    expect_writable(device)
    with pytest.raises(RunError, match="full: not writable: No space left on device"):
        write_bytes(device, b"x")
    assert device.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_the_standard_output_is_added_to_wherever_it_goes(tmp_path: Path) -> None:
    with (tmp_path / "out").open("a") as file:
        file.write("before\n")
        file.flush()
        write_text_file(Path(f"/dev/fd/{file.fileno()}"), ["new\n"])
        file.write("after\n")
    assert (tmp_path / "out").read_text() == "before\nnew\nafter\n"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere/out", "No such file"),
        ("lost", "No such file"),
        (".", "Is a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_line(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "lost").symlink_to("nowhere/out")
    with pytest.raises(RunError, match=f"not writable: {said}"):
        write_text_file(tmp_path / name, ["new\n"])
    assert [path.name for path in tmp_path.iterdir()] == ["lost"]

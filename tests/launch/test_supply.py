"""Whoever is ready: a standby that knows the model, else a fork, else any standby."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from torchett.launch.standbys import Standbys
from torchett.launch.supply import Supply
from torchett.startup.recipe import recipes


class Template:
    """Forks that only say who was asked."""

    most_bytes = 0

    def __init__(self, forks: bool) -> None:
        self.forks = forks

    def take(self, *job: Any) -> str | None:
        return "fork" if self.forks else None

    def fill(self, spare: bool) -> None: ...
    def weigh(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("cooked", "forks", "taken"),
    [(True, True, "standby"), (False, True, "fork"), (False, False, "standby")],
)
def test_a_standby_that_is_not_ready_is_not_waited_for(
    cooked: bool, forks: bool, taken: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text("")
    standbys = Standbys(2, os.environ, preload=())
    supply = Supply(Template(forks), standbys)  # type: ignore[arg-type]
    try:
        supply.fill()
        assert standbys._waiting == [], "not while ranks start up"
        supply.fill(spare=True)
        ours = standbys._waiting[1]
        if cooked:
            ours.cooked = True
        env = os.environ | {"LOCAL_RANK": "1"}
        found = supply.take([str(tmp_path / "x.py")], env, None, None)
        assert found == "fork" if taken == "fork" else found is ours.process
    finally:
        supply.close()


def test_a_standby_that_begins_anew_is_not_ready_any_more(tmp_path: Path) -> None:
    env = os.environ | {"ETT_RUN": str(tmp_path), "ETT_STANDBY_MODEL": "1"}
    folder = recipes(env, "0")
    folder.mkdir(parents=True)
    standbys = Standbys(1, env, preload=())
    try:
        standbys.fill()
        standbys._waiting[0].cooked = True
        (folder / "second.recipe").write_text("no recipe")
        until = time.monotonic() + 20
        while standbys._waiting[0].has_cooked():
            assert time.monotonic() < until, "it never said so"
            time.sleep(0.05)
    finally:
        standbys.close()

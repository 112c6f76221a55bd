"""The agent's own seams in torch's."""

from types import SimpleNamespace

import pytest

from torchett.launch.agent import _meet_at_once

rendezvous = pytest.importorskip("torch.distributed.elastic.rendezvous.dynamic_rendezvous")


@pytest.mark.parametrize(("nodes", "pauses"), [(1, [1.0]), (2, [(0, 0.3), 1.0])])
def test_only_a_node_that_has_company_waits_for_a_random_while(
    nodes: int, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []
    monkeypatch.setattr(rendezvous, "_delay", made.append)
    monkeypatch.setattr("time.sleep", made.append)
    _meet_at_once(SimpleNamespace(_settings=SimpleNamespace(max_nodes=nodes)))
    rendezvous._delay((0, 0.3))
    rendezvous._delay(1.0)
    assert made == pauses


def test_a_rendezvous_of_another_kind_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_delay", print)
    _meet_at_once(SimpleNamespace())
    assert rendezvous._delay is print

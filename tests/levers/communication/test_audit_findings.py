"""The findings from the ranks' arrivals: hand-drawn cases."""

from typing import Any

import pytest

from torchett.levers.communication.audit import as_ranges
from torchett.levers.communication.communication import Communication, communication

MS = 1000  # calls are noted in microseconds


def noted(
    rank: int, calls: list[tuple[str, str | None, float, float]], offset_ms: float = 0, **more: Any
) -> tuple[int, int, int, dict[str, Any]]:
    """A rank's note: (name, channel, arrival, took) in milliseconds."""
    names = list(dict.fromkeys(name for name, *_ in calls))
    rows = [
        [names.index(name), channel, int(t0 * MS), int(took * MS), 100, 0]
        for name, channel, t0, took in calls
    ]
    lines = [f"train.py:{int(name == 'new_group')}" for name in names]
    sites = [[i, name, line, line] for i, (name, line) in enumerate(zip(names, lines, strict=True))]
    fact = {"base_ns": 0, "calls": rows, "sites": sites, **more}
    return 0, rank, int(offset_ms * 1e6), fact


def found(*notes: tuple[int, int, int, dict[str, Any]], **more: Any) -> Communication:
    result = communication(notes, **more)
    assert result is not None
    return result


def test_waiting_lasts_until_the_last_arrival_and_the_rest_is_work() -> None:
    one = found(
        noted(0, [("barrier", "group 0", 10, 90)]),
        noted(1, [("barrier", "group 0", 80, 20)]),
        noted(2, [("barrier", "group 0", 60, 40)]),
    )
    (site,) = one.sites
    assert (site.wait_ns, site.work_ns) == (90_000_000, 60_000_000)
    assert (site.calls, site.ranks, site.bytes) == (1, 3, 300)
    assert dict(site.last) == {1: 1}


def test_a_call_that_ends_before_the_last_arrival_is_all_waiting() -> None:
    """The source of a broadcast returns before the others arrive."""
    one = found(
        noted(0, [("broadcast", "group 0", 0, 5)]), noted(1, [("broadcast", "group 0", 100, 5)])
    )
    assert (one.sites[0].wait_ns, one.sites[0].work_ns) == (5_000_000, 5_000_000)


def test_clocks_are_aligned_before_arrivals_are_compared() -> None:
    one = found(
        noted(0, [("barrier", "group 0", 1000, 50)]),
        noted(1, [("barrier", "group 0", 0, 20)], offset_ms=1030),
    )
    assert (one.sites[0].wait_ns, one.sites[0].work_ns) == (30_000_000, 40_000_000)


def test_calls_are_matched_in_the_order_of_their_group() -> None:
    """Calls on another group, or between two ranks, have another order."""
    one = found(
        noted(0, [("a", "group 1", 0, 10), ("b", "group 0", 10, 30), ("send", None, 50, 7)]),
        noted(1, [("b", "group 0", 30, 10)]),
    )
    by_name = {site.name: site for site in one.sites}
    assert (by_name["b"].wait_ns, by_name["b"].work_ns) == (20_000_000, 20_000_000)
    assert (by_name["a"].wait_ns, by_name["a"].work_ns) == (0, 10_000_000)
    assert (by_name["send"].work_ns, by_name["send"].unsplit_ns) == (0, 7_000_000)


def test_after_the_first_difference_between_ranks_nothing_is_split() -> None:
    one = found(
        noted(0, [("a", "group 0", 0, 10), ("b", "group 0", 10, 10)]),
        noted(1, [("a", "group 0", 0, 10), ("c", "group 0", 15, 5)]),
    )
    unsplit = {site.name: site.unsplit_ns for site in one.sites}
    assert unsplit == {"a": 0, "b": 10_000_000, "c": 5_000_000}


def test_calls_of_the_first_step_are_not_start_up() -> None:
    calls: list[tuple[str, str | None, float, float]]
    calls = [("a", "group 0", 0, 10), ("a", "group 0", 500, 10)]
    one = found(noted(0, calls), first_step_ns={(0, 0): 400_000_000})
    assert one.sites[0].calls == 1


def test_many_object_gathers_from_one_place_are_a_finding_with_their_cost() -> None:
    calls: list[tuple[str, str | None, float, float]]
    calls = [("all_gather_object", "group 0", 20.0 * i, 10.0) for i in range(20)]
    (finding,) = found(noted(0, calls), noted(1, calls)).findings
    assert finding.text.startswith("20 all_gather_objects at train.py:0 cost 200 ms: one")
    assert finding.won_ns == 190_000_000
    assert found(noted(0, calls[:4]), noted(1, calls[:4])).findings == ()


def test_the_rank_that_is_waited_for_is_named() -> None:
    one = found(
        noted(0, [("barrier", "group 0", 900, 10)]),
        noted(1, [("barrier", "group 0", 0, 910)]),
        noted(2, [("barrier", "group 0", 100, 810)]),
    )
    (finding,) = one.findings
    assert finding.text == (
        "rank 0 was last at barrier at train.py:0: the others waited 850 ms each"
    )


def group(name: str, ranks: str, site: int = 0) -> dict[str, Any]:
    return {"name": name, "ranks": ranks, "backend": "gloo", "site": site, "took_ns": 5_000_000}


def test_groups_of_the_same_ranks_and_groups_never_used_are_named() -> None:
    calls: list[tuple[str, str | None, float, float]]
    calls = [("init_process_group", "init", 0, 5), ("new_group", "new", 10, 5)]
    groups = [group("0", "0-1"), group("1", "0-1", 1), group("2", "0-1", 1), group("3", "1", 1)]
    uses = {"0": 0, "1": 3, "2": 1, "3": 0}
    one = found(
        noted(0, calls, groups=groups[:3], uses=uses, final=True),
        noted(1, calls, groups=groups, uses=uses, final=True),
    )
    assert [finding.kind for finding in one.findings] == ["same_group", "unused_group"]
    assert "2 gloo groups of the same ranks 0-1, made at train.py:1" in one.findings[0].text
    assert "ranks 1 made at train.py:1 was never used" in one.findings[1].text


@pytest.mark.parametrize(
    ("said", "settled", "expected"),
    [
        ([0, 0], True, "was never used"),
        ([0, 0], False, "was not used before the first step"),
        ([0, 4], True, None),
        ([0, None], True, None),  # one cannot say
    ],
)
def test_a_group_is_unused_only_if_all_members_report_no_use(
    said: list[int | None], settled: bool, expected: str | None
) -> None:
    calls: list[tuple[str, str | None, float, float]] = [("new_group", "new", 10, 5)]
    one = found(
        *(
            noted(r, calls, groups=[group("7", "0-1")], uses={"7": n}, final=settled)
            for r, n in enumerate(said)
        )
    )
    assert [expected in f.text for f in one.findings] == ([True] if expected else [])


def test_ranks_are_written_as_ranges() -> None:
    assert as_ranges([8, 0, 1, 2, 3]) == "0-3,8"
    assert as_ranges([]) == ""

"""Which jobs are stopped: in an order as Kueue does it, or the set that costs least."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from torchett.schedule.victims import cheapest_cover, first_that_cover


def test_jobs_that_turn_out_not_to_be_needed_are_given_back() -> None:
    """a(1) b(2) c(8) in this order cover 8 GPUs, and c alone does, too."""
    assert first_that_cover(np.array([0, 1, 2]), np.array([1, 2, 8]), 8).tolist() == [2]


def test_the_order_is_kept_where_all_are_needed() -> None:
    assert first_that_cover(np.array([2, 0, 1]), np.array([4, 4, 4]), 8).tolist() == [2, 0]


def test_all_are_stopped_where_even_all_do_not_cover() -> None:
    assert first_that_cover(np.array([1, 0]), np.array([1, 2]), 8).tolist() == [1, 0]
    assert cheapest_cover(np.array([5.0, 5.0]), np.array([1, 2]), 8).tolist() == [0, 1]


def test_one_large_job_is_stopped_where_that_costs_less_than_many_small_ones() -> None:
    """Eight jobs of one GPU cost 1 each, one of eight GPUs costs 5 in all."""
    costs, gpus = np.array([1.0] * 8 + [5.0]), np.array([1] * 8 + [8])
    assert cheapest_cover(costs, gpus, 8).tolist() == [8]
    assert cheapest_cover(costs, gpus, 3).tolist() == [0, 1, 2]


def test_a_gang_that_covers_more_than_needed_competes_by_its_whole_cost() -> None:
    costs, gpus = np.array([3.0, 3.0, 5.0]), np.array([2, 2, 16])
    assert cheapest_cover(costs, gpus, 4).tolist() == [2]
    assert cheapest_cover(costs, gpus, 2).tolist() == [0]


def test_nothing_is_stopped_for_nothing() -> None:
    assert cheapest_cover(np.array([1.0]), np.array([4]), 0).tolist() == []


jobs = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([1, 2, 3, 4, 8])), max_size=9)


@settings(max_examples=300, deadline=None)
@given(jobs=jobs, need=st.integers(1, 20))
def test_no_other_set_that_covers_costs_less(jobs: list[tuple[int, int]], need: int) -> None:
    costs = np.array([float(cost) for cost, _ in jobs])
    gpus = np.array([size for _, size in jobs], dtype=np.int64)
    found = cheapest_cover(costs, gpus, need)
    covering = [
        sum(jobs[i][0] for i in chosen)
        for count in range(len(jobs) + 1)
        for chosen in combinations(range(len(jobs)), count)
        if sum(jobs[i][1] for i in chosen) >= need
    ]
    if not covering:
        assert found.tolist() == list(range(len(jobs)))
        return
    assert int(gpus[found].sum()) >= need
    assert costs[found].sum() == min(covering)

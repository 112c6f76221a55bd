"""What saves cost the steps beside them, and that it lengthens the interval."""

import random
from statistics import fmean

import pytest

from torchett.levers.checkpoint.interval.interval import AutoInterval, optimum_s
from torchett.levers.checkpoint.interval.save_cost import SaveCost
from torchett.levers.checkpoint.interval.step_slowdown import Pace


def feed(pace: Pace, plain: list[float], beside: list[float]) -> None:
    for seconds in plain:
        pace.step(seconds, False)
    pace.save_begins()
    for seconds in beside:
        pace.step(seconds, True)


def test_the_excess_of_the_steps_beside_it_less_what_it_blocked() -> None:
    pace = Pace()
    feed(pace, [0.020] * 10, [0.027, 0.026, 0.028])
    assert pace.slowdown_s(0.005) == pytest.approx(0.021 - 0.005)


def test_a_step_that_is_long_for_a_reason_of_its_own_counts_as_two() -> None:
    pace = Pace()
    feed(pace, [0.02] * 10 + [60.0], [0.02, 30.0, 0.02])
    assert pace.slowdown_s(0.0) == pytest.approx(0.02, rel=0.2)


def test_nothing_is_known_before_there_were_steps_without_a_save() -> None:
    pace = Pace()
    feed(pace, [0.02] * 7, [0.03])
    assert pace.slowdown_s(0.0) is None


def test_noise_is_no_slowdown_and_a_slowdown_is_found_in_noise() -> None:
    for slower, low, high in ((0.0, 0.0, 0.012), (0.004, 0.06, 0.1)):
        found = []
        for seed in range(40):
            dice, pace, auto = random.Random(seed), Pace(), AutoInterval()
            auto.observe_blocking(0.001)
            for _ in range(16):
                auto.observe_blocking(0.001)
                feed(
                    pace,
                    [dice.gauss(0.02, 0.002) for _ in range(50)],
                    [dice.gauss(0.02 + slower, 0.002) for _ in range(20)],
                )
                told = pace.slowdown_s(0.0)
                assert told is not None
                auto.observe_slowdown(told)
            found.append(auto.slowdown_s)
        assert low <= fmean(found) <= high


def test_what_slows_steps_down_is_done_less_often_and_the_next_attempt_knows() -> None:
    auto = AutoInterval(prior_mtbf_s=1000.0)
    auto.observe_blocking(3.0)
    auto.observe_slowdown(-7.0)  # of the first, whose upload began with imports: not told of others
    for _ in range(8):
        auto.observe_blocking(0.01)
        auto.observe_slowdown(0.49)
    assert auto.blocking_s == pytest.approx(0.5)
    assert auto.interval_s() == pytest.approx(optimum_s(0.5, auto.mtbf_s))
    following = AutoInterval(prior_mtbf_s=1000.0, state=auto.to_json())
    assert following.blocking_s == pytest.approx(0.5)
    older = {key: value for key, value in auto.to_json().items() if key != "slowdown_s"}
    assert AutoInterval(state=older).blocking_s == pytest.approx(0.01)


class FakeRanks:
    """Two ranks; what the other says is put into `said`."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def tell(self, key: str, value: str) -> None:
        self.said[key] = value

    def told(self, key: str) -> str | None:
        return self.said.get(key)

    def told_all(self, keys: list[str]) -> list[str | None]:
        return [self.told(key) for key in keys]

    def forget(self, keys: list[str]) -> None:
        for key in keys:
            self.said.pop(key, None)
            self.counts.pop(key, None)

    def count(self, key: str, add: int = 0) -> int:
        self.counts[key] = self.counts.get(key, 0) + add
        return self.counts[key]

    def other_tells(self, number: int, cost: str) -> None:
        self.tell(f"cost/{number}/1", cost)
        self.count(f"cost/{number}", 1)


class Copied:
    def wait(self) -> None: ...

    def release(self) -> None: ...

    def waited_s(self) -> float:
        return 0.05


def save(save_cost: SaveCost, number: int, *, early: bool = False) -> None:
    """0.25 s of a call, 0.05 s at the fence, 0.8 s more than two steps take."""
    save_cost.save_begins()
    save_cost.called(number, 0.25, Copied(), early=early)
    save_cost.step(1.5, True)
    save_cost.step(1.3, True)
    save_cost.over()


@pytest.fixture
def auto() -> AutoInterval:
    return AutoInterval()


@pytest.fixture
def ranks() -> FakeRanks:
    return FakeRanks()


@pytest.fixture
def save_cost(auto: AutoInterval, ranks: FakeRanks) -> SaveCost:
    save_cost = SaveCost(auto, ranks)  # type: ignore[arg-type]
    for _ in range(10):
        save_cost.step(1.0, False)
    return save_cost


def test_rank_0_keeps_the_longest_block_and_the_mean_slowdown(
    auto: AutoInterval, ranks: FakeRanks, save_cost: SaveCost
) -> None:
    save_cost.over()
    save_cost.settle()
    assert auto.blocking_s is None
    for number, cost in ((1, "[0.9, 0.7]"), (2, "[0.5, 0.1]")):
        ranks.other_tells(number, cost)
        save(save_cost, number)
        save_cost.over()
    assert auto.blocking_s == 0.5  # the first was another matter
    assert [*auto._slowdowns] == [pytest.approx((0.5 + 0.1) / 2)]


def test_a_cost_is_known_when_the_last_rank_has_told_it_or_when_the_next_save_begins(
    auto: AutoInterval, ranks: FakeRanks, save_cost: SaveCost
) -> None:
    save(save_cost, 1)
    assert auto.blocking_s is None
    ranks.other_tells(1, "[0.9, null]")
    save_cost.over()
    assert auto.blocking_s == 0.9
    save(save_cost, 2)
    save_cost.settle()  # and the other one has still to tell
    assert auto.blocking_s == 0.3


def test_an_early_save_is_better_than_nothing_and_no_better(
    auto: AutoInterval, ranks: FakeRanks, save_cost: SaveCost
) -> None:
    ranks.other_tells(1, "[0.2, null]")
    save(save_cost, 1, early=True)
    assert auto.blocking_s == 0.3
    assert AutoInterval(state=auto.to_json()).blocking_s == 0.3
    ranks.other_tells(2, "[7.0, 7.0]")
    save(save_cost, 2)
    assert auto.blocking_s == 7.0  # the first of its kind: it pays for the set-up
    ranks.other_tells(3, "[0.1, null]")
    save(save_cost, 3)
    assert auto.blocking_s == 0.3

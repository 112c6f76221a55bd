"""With the doctor's sources there is one compile for each structure, and no compile breaks."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept import Kept

from torchett.levers.compile.doctor.doctor import Diagnosis, diagnose
from torchett.levers.compile.doctor.sources import (
    joined,
    merged,
    pattern,
    render,
    takes_dimensions,
    unstripped,
)
from torchett.levers.compile.observe.facts import Compile


class Scaled:
    """An object with an attribute."""

    def __init__(self) -> None:
        self.scale = 2


def add(x: Any, s: int = 1) -> Any:
    return (x + s).sum()


def both(x: Any, y: Any) -> Any:
    return x.sum() + y.sum()


def by_eight(x: Any) -> Any:
    return (x + 1).sum() if x.shape[0] % 8 == 0 else (x - 1).sum()


def of_list(xs: Sequence[Any], scaled: Scaled) -> Any:
    return sum(x.sum() for x in xs) * scaled.scale


def of_dict(batch: dict[str, Any]) -> Any:
    return sum(x.sum() for x in batch.values())


def a_list(torch: Any, n: int) -> tuple[Any, ...]:
    scaled = Scaled()
    scaled.scale = n
    return [torch.ones(n, 3), torch.ones(2, n)], scaled


CASES: list[tuple[Callable[..., Any], Callable[[Any, int], tuple[Any, ...]], list[int], int]] = [
    (add, lambda torch, n: (torch.ones(n, 4),), [4, 8, 16, 9], 1),
    (add, lambda torch, n: (torch.ones(4), n), [2, 3, 4, 1, 0], 1),
    (add, lambda torch, n: (torch.ones(n), n + 1), [2, 3, 7, 5], 1),
    (both, lambda torch, n: (torch.ones(n), torch.ones(6)), [4, 6, 5, 7], 1),
    (both, lambda torch, n: (torch.ones(3, n), torch.ones(n, 2)), [4, 8, 12], 1),
    (by_eight, lambda torch, n: (torch.ones(n),), [8, 16, 9, 24, 7], 2),
    (of_list, a_list, [4, 5, 6], 1),
    (add, lambda torch, n: (torch.ones(n),), [4, 5, 1, 6], 2),
    (add, lambda torch, n: (torch.ones((n,) * (1 + n % 2)),), [4, 5, 6, 7], 2),
]


def compiles(record: Kept, torch: Any, function: Any, calls: Sequence[tuple[Any, ...]]) -> Any:
    """The diagnosis of these calls, beginning without compiled code."""
    before = len(record.compiles())
    torch._dynamo.reset()
    torch._dynamo.pgo.reset_code_state()
    run = torch.compile(function, backend="eager")
    for call in calls:
        torch.testing.assert_close(run(*call), function(*call))
    return diagnose([(0, 0, one) for one in record.compiles()[before:]])


@pytest.fixture
def told(torch: Any) -> Any:
    """A function that sets torch's dynamic sources until the end of the test."""

    def tell(value: str) -> None:
        torch.compiler.config.dynamic_sources = value

    yield tell
    torch.compiler.config.dynamic_sources = ""


@pytest.mark.parametrize(("function", "make", "sizes", "least"), CASES)
def test_sources_leave_one_graph_for_each_structure(
    record: Kept, torch: Any, told: Any, function: Any, make: Any, sizes: list[int], least: int
) -> None:
    calls = [make(torch, n) for n in sizes]
    before: Diagnosis = compiles(record, torch, function, calls)
    assert before.graphs > least or function is by_eight or before.left == least
    told(render(before.sources, by_dimension=takes_dimensions()))
    after = compiles(record, torch, function, calls)
    assert after.graphs == least
    assert before.left >= after.graphs


def test_without_dimensions_sources_work_as_well(record: Kept, torch: Any, told: Any) -> None:
    """So in torch 2.11: there all dimensions of the tensor are dynamic."""
    calls = [(torch.ones(n, 4),) for n in (4, 8, 16)]
    before = compiles(record, torch, add, calls)
    assert before.sources == {"L['x']": [0]}
    told(render(before.sources, by_dimension=False))
    assert compiles(record, torch, add, calls).graphs == 1


NASTY = ["my-key", "a,b", "x y", "it's", 'say "x"', "[0-", "\\", "\\d", "é", "a:0", "$", "(((", "",
         "a\nb", "a,]", "L['x']", "*", "\t"]  # fmt: skip


@pytest.mark.parametrize("by_dimension", [True, False])
def test_no_name_breaks_a_compile(record: Kept, torch: Any, told: Any, by_dimension: bool) -> None:
    calls = [({key: torch.ones(n) for key in NASTY},) for n in (4, 5, 6)]
    before = compiles(record, torch, of_dict, calls)
    assert len(before.sources) == len(NASTY)
    told(render(before.sources, by_dimension=by_dimension))
    assert compiles(record, torch, of_dict, calls).graphs == 1


sources = st.builds(
    lambda base, key, rest: f"L[{base!r}][{key!r}]{rest}",
    st.text(min_size=1, max_size=8),
    st.one_of(st.text(max_size=20), st.integers()),
    st.sampled_from(["", ".weight", "[0]", "['a, b']", ".size()[0]", ":3"]),
)


@settings(max_examples=300, deadline=None)
@given(names=st.lists(sources, min_size=1, max_size=4, unique=True), dims=st.integers(0, 5))
def test_in_torchs_matcher_a_pattern_matches_its_own_name_only(names: list[str], dims: int) -> None:
    torch = pytest.importorskip("torch")
    builder = pytest.importorskip("torch._dynamo.variables.builder")
    for by_dimension in (False, takes_dimensions()):
        value = render({name: [dims] for name in names}, by_dimension=by_dimension)
        torch.compiler.config.dynamic_sources = value
        try:
            for name in names:
                assert builder.is_dynamic_source(name)
                if by_dimension:
                    assert builder.is_dynamic_source(name, dims)
                    assert not builder.is_dynamic_source(name, dims + 1)
            longer = names[0] + "x"
            assert longer in names or not builder.is_dynamic_source(longer)
        finally:
            torch.compiler.config.dynamic_sources = ""


def test_a_pattern_has_no_space_or_comma() -> None:
    assert pattern("L['a, b']") == r"L\['a..b'\]$"
    assert render({"L['x']": [0, 2], "L['n']": None}, by_dimension=True) == (
        r"L\['n'\]$,L\['x'\]$:0,L\['x'\]$:2"
    )
    assert joined(None, "", "a,b", "b,c") == "a,b,c"


def test_sources_of_several_ranks_are_joined() -> None:
    assert merged([{"a": [0], "n": None}, {"a": [1], "n": None}, {"b": []}, {"b": [2]}]) == {
        "a": [0, 1], "n": None, "b": [],
    }  # fmt: skip
    assert unstripped("x.y") == "L['x'].y"
    assert unstripped("G['x']") == "G['x']"


def test_a_recompile_includes_its_backward_and_a_limit_is_not_a_graph() -> None:
    reason = ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5",)
    limit = "Dynamo recompile limit exceeded … exceeding the recompile_limit cache size limit"
    found = diagnose(
        [
            (0, 0, Compile(id="0/0", t0_ns=0, t1_ns=10)),
            (0, 0, Compile(id="0/1", t0_ns=20, t1_ns=50, reasons=reason)),
            (0, 0, Compile(id="0/1", part="backward", t0_ns=60, t1_ns=65)),
            (0, 0, Compile(id="0/2", t0_ns=70, t1_ns=71, reasons=reason, failed=limit)),
        ]
    )
    assert (found.graphs, found.left, found.ns, found.lost_ns) == (2, 1, 46, 36)
    assert [one.reason.kind for one in found.recompiles] == ["size", "limit"]
    assert found.to_json()["causes"][0]["seconds"] == pytest.approx(35e-9)


def test_sources_that_would_not_help_are_not_suggested(record: Kept, torch: Any) -> None:
    floats = compiles(record, torch, add, [(torch.ones(4), s) for s in (1.5, 2.5, 3.5)])
    assert [one.reason.kind for one in floats.recompiles] == ["float"]
    assert floats.sources == {}
    ranks = compiles(record, torch, add, [(torch.ones(4),), (torch.ones(4, 4),)])
    assert [one.reason.kind for one in ranks.recompiles] == ["rank"]
    assert ranks.sources == {}

"""Reasons in torch's own words, each with its kind."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchett.levers.compile.doctor.reasons import CAUSES, explained

USER = '  # return x * s  # oot/train.py:6 in f\nUser stack trace:\n  File "train.py", line 6'
ZERO_ONE = (
    "  # t+1  # train.py:23 in f (user code shown is first use of this value--the guard itself is"
    " not due user code but due to 0/1 specialization in the framework; to avoid specialization"
    " try torch._dynamo.decorators.mark_unbacked(tensor, dim))"
)
HINT = (
    "                      # return s.l(t)*s.scale  # train.py:68 in forward (HINT: torch.compile"
    " considers integer attributes of the nn.Module to be static.)"
)


@pytest.mark.parametrize(
    ("reason", "kind", "source", "dim"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12", "size", "L['x']", 0),
        ("0/0: tensor 'ts[0]' size mismatch at index 1. expected 4, actual 5",
         "size", "L['ts'][0]", 1),
        ("0/2: tensor 'd['my-key']' size mismatch at index 0. expected 4, actual 5",
         "size", "L['d']['my-key']", 0),
        ("0/0: tensor 'self.table' size mismatch at index 0. expected 4, actual 5",
         "size", "L['self'].table", 0),
        ("0/0: tensor 'x' size mismatch at index 0. expected 1, actual 5",
         "zero_one", "L['x']", 0),
        ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 0",
         "zero_one", "L['x']", 0),
        ("0/0: tensor 't' stride mismatch at index 0. expected 5, actual 1",
         "stride", "L['t']", None),
        ("0/0: tensor 't' rank mismatch. expected 2, actual 1", "rank", "L['t']", None),
        ("0/0: tensor 't' dtype mismatch. expected Float, actual Double", "dtype", "L['t']", None),
        ("0/0: tensor 't' requires_grad mismatch. expected requires_grad=0",
         "dtype", "L['t']", None),
        ("0/0: tensor 't' dispatch key set mismatch. expected DispatchKeySet(CPU), actual"
         " DispatchKeySet(Meta)", "dtype", "L['t']", None),
        ("0/0: expected type of 't' to be a tensor type, ' but found <class 'Parameter'>",
         "dtype", "L['t']", None),
        ("0/0: GLOBAL_STATE changed: grad_mode", "grad_mode", None, None),
        ("0/0: GLOBAL_STATE changed: autocast(cpu)_enabled", "global_state", None, None),
        ("0/0: ___check_global_state()", "global_state", None, None),
        (f"0/1: s == 2                 {USER}", "number", "L['s']", None),
        (f"0/0: s.scale == 2{HINT}", "number", "L['s'].scale", None),
        (f"0/0: G['G'] == 3            {USER}", "number", "G['G']", None),
        (f"0/0: n[0] == 2              {USER}", "number", "L['n'][0]", None),
        (f"0/0: s == 2.5               {USER}", "float", "L['s']", None),
        (f"0/0: s == True              {USER}", "constant", "L['s']", None),
        (f"0/0: mode == 'a'            {USER}", "constant", "L['mode']", None),
        (f"0/0: self.flag == True      {USER}", "attribute", "L['self'].flag", None),
        ("0/0: ___check_obj_id(fn, 140439264606080)                   ", "object", "L['fn']", None),
        ("0/0: ___check_obj_id(fn.__code__, 140036189020752), type=<class 'code'>  # f(x)",
         "object", "L['fn'].__code__", None),
        ("0/0: ___check_obj_id(self.training, 94034114905888)", "attribute", "L['self'].training",
         None),
        ("0/0: ___check_type_id(a, 140036196889408), type=<class 'list'>  # a (HINT: type list)",
         "type", "L['a']", None),
        (f"0/0: len(ts) == 1           {USER}", "structure", None, None),
        (f"0/1: list(dict.keys(d))[0] == 'b'      {USER}", "structure", None, None),
        ('0/0: Duplicate tensors found: ["a", "b"]', "alias", None, None),
        ("0/0: BACKEND_MATCH failure: torch.compile detected different backend callables.",
         "backend", None, None),
        ("0/0: u.size()[0] == t.size()[0]  # duck sizing added this equality because these"
         " variables had the same size 5", "duck", "L['u']", 0),
        ("0/1: (t.size()[0] % 8) == 0  # t  # train.py:78 in f", "branch", "L['t']", 0),
        ("0/1: 4097 <= dense.size()[0]  # (_inductor/codegen/cpp.py:2273 in need_use_acc_helper)",
         "range", "L['dense']", 0),
        (f"0/1: 2 <= t.size()[0]{ZERO_ONE}", "zero_one", "L['t']", 0),
        (f"0/1: 2 <= t.size()[0] <= 10{ZERO_ONE}", "range", "L['t']", 0),
        ("0/1: tokens.stride()[0] == tokens.size()[1]  # x  # gpt/model.py:93 in forward",
         "stride", "L['tokens']", 0),
        ("Unable to find recompilation reasons", "unknown", None, None),
        ("0/0: something new", "unknown", None, None),
        ("", "unknown", None, None),
    ],
)  # fmt: skip
def test_a_reason_has_a_kind_a_source_and_a_dimension(
    reason: str, kind: str, source: str | None, dim: int | None
) -> None:
    found = explained((reason,))
    assert (found.kind, found.source, found.dim) == (kind, source, dim)


def test_the_end_of_a_range_that_failed_is_found_from_an_older_graph() -> None:
    """Torch reports 0/1 specialization for both ends."""
    guard = f"0/1: 2 <= t.size()[0] <= 10{ZERO_ONE}"
    older = "0/0: tensor 't' size mismatch at index 0. expected 4, actual {}"
    assert explained((guard, older.format(20))).kind == "range"
    assert explained((guard, older.format(1))).kind == "zero_one"
    other = "0/0: tensor 'u' size mismatch at index 0. expected 4, actual 1"
    assert explained((guard, other)).kind == "range"


def test_a_guard_of_the_backend_has_its_place() -> None:
    inductor = "(_inductor/codegen/cpp.py:2273 in need_use_acc_helper)"
    found = explained((f"0/1: 2 <= t.size()[0] <= 4096{ZERO_ONE} and {inductor}",))
    assert (found.kind, found.by) == ("range", inductor.strip("()"))
    assert explained((f"0/1: 2 <= t.size()[0]{ZERO_ONE}",)).by is None


def test_the_newest_of_the_nearest_graphs_gives_the_reason() -> None:
    size = "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 12"
    above = "0/1: 4097 <= x.size()[0]"
    assert explained(("0/3: GLOBAL_STATE changed: grad_mode", size)).kind == "size"
    assert explained((size, "0/10: tensor 'x' rank mismatch. expected 2, actual 1")).kind == "size"
    assert explained((size, above)).kind == explained((above, size)).kind == "range"
    structures = ("0/2: len(xs) == 2", "0/10: GLOBAL_STATE changed: grad_mode")
    assert explained(structures).kind == "grad_mode"


def test_the_limit_is_a_kind_of_its_own() -> None:
    failed = "Dynamo recompile limit exceeded\n  exceeding the recompile_limit cache size limit"
    assert explained(("0/7: s == 2",), failed).kind == "limit"
    assert explained(("0/7: s == 2",), "ValueError").kind == "number"


@settings(max_examples=300)
@given(st.lists(st.one_of(st.text(), st.text("0/:=<'[]()#. tensorsize123\n")), max_size=3))
def test_every_reason_has_some_kind(reasons: list[str]) -> None:
    assert explained(tuple(reasons)).kind in CAUSES


def test_every_kind_has_advice() -> None:
    assert {kind for kind, cause in CAUSES.items() if cause.cured} == {"size", "number", "duck"}
    assert all(cause.title and cause.advice for cause in CAUSES.values())

"""The one way to change what is not ours: kind, name and signature stay, and it can be undone."""

import functools
import inspect
import logging
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from torchett.record import patches
from torchett.record.patches import (
    Patch,
    install,
    install_finder,
    install_inside,
    install_on,
    installed,
)


class Owner:
    """Stands for a class of torch's."""

    def method(self, a: int, *, b: int = 2) -> int:
        """The sum."""
        return a + b

    @classmethod
    def made(cls, a: int) -> tuple[type, int]:
        return cls, a

    @staticmethod
    def alone(a: int) -> int:
        return a

    @property
    def size(self) -> int:
        """How large."""
        return 3


class Heir(Owner):
    pass


def function(a: int, b: str = "x") -> str:
    """Say it."""
    return b * a


def logged(func):  # what torch.distributed.c10d_logger does
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        return func(*args, **kwargs)

    return wrapper


@logged
def collective(a: int) -> int:
    return a


HERE = __name__
NEEDS = {"logged": (f"{HERE}:Owner._private",)}
TARGETS = ("Owner.*", "Heir.method", "function", "collective", "gone", "logged")
TABLE = (
    *(
        Patch(target=f"{HERE}:{x}", lever="try", default="run", reason="", needs=NEEDS.get(x, ()))
        for x in TARGETS
    ),
    Patch(target="sys:meta_path", lever="find", default="run", reason=""),
)


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(patches, "TABLE", TABLE)
    monkeypatch.setattr(patches, "_said", set())
    before = len(patches._installed)
    yield
    for one in reversed(patches._installed[before:]):
        one.remove()
    del patches._installed[before:]


def calling(plain):
    def ours(*args, **kwargs):
        return ("ours", plain(*args, **kwargs))

    return ours


def test_name_signature_and_docs_stay() -> None:
    before = inspect.signature(Owner.method)
    assert install(f"{HERE}:Owner.method", calling) is not None
    assert Owner().method(1) == ("ours", 3)
    assert inspect.signature(Owner.method) == before
    assert Owner.method.__qualname__ == "Owner.method"
    assert Owner.method.__doc__ == "The sum."


def test_a_replaced_function_is_pickled_by_its_name() -> None:
    assert install(f"{HERE}:function", calling) is not None
    assert pickle.loads(pickle.dumps(function)) is function
    assert function(2) == ("ours", "xx")


def test_class_methods_static_methods_and_properties_stay_what_they_are() -> None:
    for name in ("made", "alone", "size"):
        assert install(f"{HERE}:Owner.{name}", calling) is not None
    assert Heir.made(1) == ("ours", (Heir, 1))
    assert Owner.alone(1) == Owner().alone(1) == ("ours", 1)
    assert Owner().size == ("ours", 3)
    assert Owner.size.__doc__ == "How large."
    kinds = {name: type(vars(Owner)[name]) for name in ("made", "alone", "size")}
    assert kinds == {"made": classmethod, "alone": staticmethod, "size": property}


def test_removed_it_is_as_it_was_and_can_be_restored() -> None:
    plain = vars(Owner)["method"]
    patch = install(f"{HERE}:Owner.method", calling)
    assert patch is not None
    assert installed()[-1] is patch
    assert patch.plain is plain
    patch.remove()
    assert vars(Owner)["method"] is plain
    assert patch not in installed()
    patch.restore()
    assert Owner().method(1) == ("ours", 3)


def test_what_was_inherited_is_inherited_again() -> None:
    patch = install(f"{HERE}:Heir.method", calling)
    assert patch is not None
    assert Heir().method(1) == ("ours", 3)
    assert Owner().method(1) == 3
    patch.remove()
    assert "method" not in vars(Heir)
    patch.restore()
    assert Heir().method(1) == ("ours", 3)


def test_what_somebody_else_has_put_there_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = install(f"{HERE}:Owner.method", calling)
    assert patch is not None
    monkeypatch.setattr(Owner, "method", "theirs")
    patch.remove()
    assert vars(Owner)["method"] == "theirs"
    monkeypatch.undo()


def test_an_instance_can_be_patched_alone() -> None:
    one = Owner()
    patch = install_on(one, f"{HERE}:Owner.method", calling)
    assert patch is not None
    assert one.method(1) == ("ours", 3)
    assert Owner().method(1) == 3
    patch.remove()
    assert "method" not in vars(one)


def test_a_module_that_holds_the_same_object_is_patched_along() -> None:
    other = sys.modules["another"] = ModuleType("another")
    other.function = function  # type: ignore[attr-defined]
    try:
        patch = install(f"{HERE}:function", calling, also=("another", "never.imported"))
        assert patch is not None
        assert other.function is function
        patch.remove()
        assert other.function is function
        assert function(1) == "x"
    finally:
        del sys.modules["another"]


def test_what_logging_wrappers_call_is_replaced_for_all_that_took_the_name() -> None:
    taken_earlier = collective
    patch = install_inside(f"{HERE}:collective", calling)
    assert patch is not None
    assert collective is taken_earlier
    assert taken_earlier(1) == ("ours", 1)
    patch.remove()
    assert taken_earlier(1) == 1


def test_without_a_wrapper_inside_means_the_function_itself() -> None:
    assert install_inside(f"{HERE}:function", calling) is not None
    assert function(1) == ("ours", "x")


@pytest.mark.parametrize("name", ["gone", "logged"])
def test_a_missing_name_leaves_it_off_with_one_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    plain = logged
    with caplog.at_level(logging.WARNING, "torchett"):
        assert install(f"{HERE}:{name}", calling) is None
        assert install(f"{HERE}:{name}", calling) is None
    assert len(caplog.messages) == 1
    what = {"gone": "gone", "logged": "Owner._private"}[name]
    assert caplog.messages[0].startswith("torchett: try is off: ")
    assert caplog.messages[0].endswith(f"has no {HERE}.{what}")
    assert logged is plain


@pytest.mark.parametrize("switch", ["try", f"other,{HERE}:function"])
def test_a_lever_or_a_target_can_be_switched_off(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETT_WITHOUT", switch)
    assert install(f"{HERE}:function", calling) is None
    assert function(1) == "x"


def test_a_finder_stands_first_unless_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    finder = object()
    assert install_finder(finder, "find")
    assert install_finder(finder, "find")
    assert sys.meta_path[0] is finder
    assert sys.meta_path.count(finder) == 1
    monkeypatch.setenv("ETT_WITHOUT", "find")
    assert not install_finder(object(), "find")


def test_only_what_has_a_row_can_be_changed() -> None:
    with pytest.raises(KeyError, match="no row for math:sin"):
        install("math:sin", calling)

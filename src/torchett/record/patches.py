"""Every change that torchett makes to a foreign object.

    patch_table.py   what may be changed, why, for which lever, and whether it is on by default
    install()        the one way to change it: wrapped, with its name and signature, to be undone
    install_on()     the same on one instance
    install_inside() the same for what torch's logging wrappers call, in their closure cell
    install_finder() the same for `sys.meta_path`
    installed()      what is changed in this process

A target is `module:Class.attribute`. `ett run --explain` prints the table; `ett run --without NAME`
(ETT_WITHOUT=NAME,…) leaves a target, or all targets of a lever, as they are. A target that this
version of torch does not have is left out with one line in the log, and stock behaviour stays.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from types import FunctionType
from typing import Any

from torchett.record.patch_table import TABLE, Patch

log = logging.getLogger("torchett")


class Installed:
    """An installed patch; `remove` restores the original, `restore` patches again."""

    __slots__ = (
        *("_delete", "_inherited", "_name", "_owners", "_plain", "_set", "_wrapped"),
        "patch",
    )

    def __init__(
        self,
        patch: Patch,
        owners: Sequence[Any],
        name: str,
        plain: Any,
        set_: Callable[[Any, str, Any], None] = setattr,
        delete: Callable[[Any, str], None] = delattr,
    ) -> None:
        self._set, self._delete = set_, delete
        self.patch, self._owners, self._name, self._plain = patch, owners, name, plain
        self._inherited = owners[0] if name not in _own_names(owners[0]) else None
        self._wrapped = plain

    @property
    def plain(self) -> Any:
        """The original attribute."""
        return self._plain

    @property
    def is_on(self) -> bool:
        """Whether the patch is installed: not removed, and not replaced by another library."""
        return _own_names(self._owners[0]).get(self._name) is self._wrapped

    def put(self, wrapped: Any) -> "Installed":
        """Replace the original by this."""
        self._wrapped = wrapped
        for owner in self._owners:
            self._set(owner, self._name, wrapped)
        return self

    def remove(self) -> None:
        """Restore the original, unless another library has replaced the patch."""
        for owner in self._owners:
            if _own_names(owner).get(self._name) is self._wrapped:
                if owner is self._inherited:
                    self._delete(owner, self._name)
                else:
                    self._set(owner, self._name, self._plain)

    def restore(self) -> None:
        """Patch again after `remove`, unless another library has replaced the attribute."""
        for owner in self._owners:
            found = _own_names(owner).get(self._name, _MISSING)
            if found is (_MISSING if owner is self._inherited else self._plain):
                self._set(owner, self._name, self._wrapped)


def install(
    target: str,
    make: Callable[[Any], Any],
    *,
    also: tuple[str, ...] = (),
    lever: str | None = None,
) -> Installed | None:
    """Replace the target by `make(original)`; None where it is switched off or missing.

    `also` names modules that hold the same object under the same name (`torch` for torch.save).
    `lever` says which row is meant where two levers patch one target. A class method or a property
    stays one: `make` gets, and returns, the function in it.
    """
    patch = row(target, lever)
    if is_off(patch) or _lacks(patch, find(target) is _MISSING, target):
        return None
    owner, name = _owner(target)
    plain = _own_names(owner)[name] if name in _own_names(owner) else getattr(owner, name)
    others = filter(None, map(sys.modules.get, also))
    owners = [owner, *(module for module in others if getattr(module, name, None) is plain)]
    made = Installed(patch, owners, name, plain).put(_around(plain, make))
    _installed.append(made)
    return made


def install_on(one: Any, target: str, make: Callable[[Any], Any]) -> Installed | None:
    """Set the target's attribute on one instance, for as long as that lives."""
    patch, (_, name) = row(target), _owner(target)
    if is_off(patch) or _lacks(patch, not hasattr(one, name), target):
        return None
    plain = getattr(one, name)
    return Installed(patch, [one], name, plain, _set_own, _delete_own).put(_around(plain, make))


def calling(around: Callable[..., Any]) -> Callable[[Any], Any]:
    """For `install`: what calls `around(plain, *args, **kwargs)` in place of the function."""

    def make(plain: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            return around(plain, *args, **kwargs)

        return called

    return make


def install_inside(
    target: str, make: Callable[[Any], Any], *, lever: str | None = None
) -> Installed | None:
    """Replace what torch's logging wrappers around the target call, in their closure cell.

    Everybody who took the name earlier then calls the replacement, too, and torch.compile still
    finds the functions it knows. A target without such a wrapper is replaced as `install` does.
    """
    patch = row(target, lever)
    if is_off(patch) or _lacks(patch, find(target) is _MISSING, target):
        return None
    cell = innermost_cell(find(target))
    if cell is None:
        return install(target, make, lever=lever)
    made = Installed(patch, [cell], "cell_contents", cell.cell_contents)
    made.put(_around(cell.cell_contents, make))
    _installed.append(made)
    return made


def innermost_cell(function: Any) -> Any:
    """The closure cell that holds what torch's logging wrappers call; None if there is none."""
    found = None
    while getattr(function, "__closure__", None) and "func" in function.__code__.co_freevars:
        found = function.__closure__[function.__code__.co_freevars.index("func")]
        function = found.cell_contents
    return found


def install_finder(finder: Any, lever: str) -> bool:
    """Put the finder first in `sys.meta_path`; False where its row is switched off."""
    if is_off(row("sys:meta_path", lever)):
        return False
    if finder not in sys.meta_path:
        sys.meta_path.insert(0, finder)
    return True


def remove_finder(finder: Any) -> None:
    """Take the finder out of `sys.meta_path` again."""
    if finder in sys.meta_path:
        sys.meta_path.remove(finder)


def installed() -> list[Installed]:
    """The patches that are installed in this process."""
    return [one for one in _installed if one.is_on]


def is_off(patch: Patch) -> bool:
    """Whether ETT_WITHOUT names this target or its lever."""
    without = os.environ.get("ETT_WITHOUT")
    return bool(without) and not {patch.lever, patch.target}.isdisjoint(str(without).split(","))


def row(target: str, lever: str | None = None) -> Patch:
    """The row of the table for this target, and this lever where there are several."""
    of_lever = [patch for patch in TABLE if lever in (None, patch.lever)]
    for patch in of_lever:
        if patch.target == target:
            return patch
    for patch in of_lever:
        if fnmatchcase(target, patch.target):
            return patch
    raise KeyError(f"record/patch_table.py has no row for {target} (lever {lever})")


_MISSING: Any = object()
_installed: list[Installed] = []
_said: set[tuple[str, str]] = set()


def find(target: str) -> Any:
    """The object that `module:a.b` names in a module that is imported; `_MISSING` if none."""
    module, _, path = target.partition(":")
    found: Any = sys.modules.get(module, _MISSING)
    for name in path.split(".") if path else ():
        found = getattr(found, name, _MISSING)
    return found


def missing(*names: str) -> str | None:
    """The first of these names that its module lacks; None if all are there.

    A name in a module that is not imported is not looked for: that would import it.
    """
    for name in names:
        if name.partition(":")[0] in sys.modules and "*" not in name and find(name) is _MISSING:
            return name
    return None


def _lacks(patch: Patch, is_gone: bool, target: str) -> bool:
    """Whether the target, or another name that the patch needs, is missing; logged once."""
    name = target if is_gone else missing(*patch.needs)
    if name is None:
        return False
    if (patch.lever, name) not in _said:  # once
        _said.add((patch.lever, name))
        package = name.partition(":")[0].partition(".")[0]
        log.warning(
            "torchett: %s is off: this %s has no %s", patch.lever, package, name.replace(":", ".")
        )
    return True


def _around(plain: Any, make: Callable[[Any], Any]) -> Any:
    """The result of `make`, as a method of the same kind with the same name and signature."""
    if isinstance(plain, classmethod | staticmethod):
        return type(plain)(_around(plain.__func__, make))
    if isinstance(plain, property):
        getter = _around(plain.fget, make)
        return property(getter, plain.fset, plain.fdel, plain.__doc__)
    wrapped = make(plain)
    inner = isinstance(wrapped, FunctionType) and "<locals>" in wrapped.__qualname__
    if inner and callable(plain) and wrapped is not plain:  # else it is found by its own name
        functools.update_wrapper(wrapped, plain)
    return wrapped


def _own_names(owner: Any) -> Any:
    """The attributes that are the owner's own, not inherited."""
    if type(owner).__name__ == "cell":
        return {"cell_contents": owner.cell_contents}
    return getattr(owner, "__dict__", {})


def _set_own(one: Any, name: str, value: Any) -> None:
    """Set an attribute of an instance: torch.compile's modules hand on what is set otherwise."""
    vars(one)[name] = value


def _delete_own(one: Any, name: str) -> None:
    del vars(one)[name]


def _owner(target: str) -> tuple[Any, str]:
    path, _, name = target.rpartition("." if "." in target.partition(":")[2] else ":")
    return find(path), name

"""The recipe that a target names, and the source that it is made of.

examples/dlrm/publishing.py:recipe      a file; what it imports from beside it comes along
company.models.ranking:Recipe           a module on the path
"""

import ast
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from torchett.levers.publish.errors import PublishError, RecipeError, one_line
from torchett.levers.publish.recipe.recipe import Recipe, recipe_hash

_there_before: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A recipe, with what it goes by."""

    recipe: Recipe
    target: str
    hash: str


def find_recipe(target: str, path: Sequence[str] = ()) -> Found:
    """The recipe of FILE.py:NAME or MODULE:NAME; `path` are folders to import from."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise RecipeError(f"recipe {target!r}: expected FILE.py:NAME or MODULE:NAME")
    _forget_earlier_recipes()
    before = list(sys.path)
    sys.path[:0] = [folder for folder in path if folder not in sys.path]
    try:
        module = _module(where, target)
        made = getattr(module, name, None)
        if made is None:
            raise RecipeError(f"recipe {target!r}: {where} has no {name!r}")
        try:
            recipe = made if isinstance(made, Recipe) else made()
        except PublishError:
            raise
        except Exception as error:
            raise RecipeError(f"recipe {target!r} raised {one_line(error)}") from error
        if not isinstance(recipe, Recipe):
            raise RecipeError(
                f"recipe {target!r} gave a {type(recipe).__name__}: expected a torchett Recipe"
            )
        sources = _sources(module)
    finally:
        if not path:
            sys.path[:] = before  # else the recipe may import more later on
    shown = f"{Path(where).name if where.endswith('.py') else where}:{name}"
    return Found(recipe=recipe, target=target, hash=recipe_hash(recipe, shown, sources))


def _forget_earlier_recipes() -> None:
    """Import the user's modules anew: their source may have changed since an earlier recipe.

    A worker lives for days. What was imported before its first recipe stays.
    """
    global _there_before
    if _there_before is None:
        _there_before = frozenset(sys.modules)
        return
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name not in _there_before and file and _is_users_own(file):
            del sys.modules[name]


def _module(where: str, target: str) -> ModuleType:
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except Exception as error:
            raise RecipeError(f"recipe {target!r} cannot be imported: {one_line(error)}") from error
    file = Path(where).absolute()
    if not file.is_file():
        raise RecipeError(f"recipe {target!r}: {file} does not exist on this host")
    name = f"ett_recipe_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RecipeError(f"recipe {target!r} cannot be imported: {one_line(error)}") from error
    return module


def _sources(module: ModuleType) -> dict[str, bytes]:
    """The source of a module and of what it imports from outside of site-packages."""
    found: dict[str, bytes] = {}
    queue = [module]
    while queue:
        one = queue.pop()
        file = getattr(one, "__file__", None)
        if not file or not file.endswith(".py") or not _is_users_own(file):
            continue
        key = one.__name__ if one is not module else "recipe"
        if key in found:
            continue
        found[key] = Path(file).read_bytes()
        named = (sys.modules.get(name) for name in _imported(found[key], one))
        queue += [other for other in named if other is not None]
    return found


def _is_users_own(file: str) -> bool:
    installed = ("site-packages", "dist-packages")
    standard = str(Path(ast.__file__).parent)
    ours = str(Path(__file__).parents[3])
    return not (any(part in file for part in installed) or file.startswith((standard, ours)))


def _imported(source: bytes, module: ModuleType) -> set[str]:
    """Dotted names that a module's source may import, packages included."""
    names: set[str] = set()
    package = getattr(module, "__package__", None) or ""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parts, base]).strip(".")
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    cut = [(name.split("."), end) for name in names for end in range(1, name.count(".") + 2)]
    return {".".join(parts[:end]) for parts, end in cut}

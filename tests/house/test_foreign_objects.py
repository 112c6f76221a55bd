"""Only record/patches.py changes what is not ours: read from the sources.

Foreign is what is imported from elsewhere, an attribute of it, what is found in `sys.modules`, and
a parameter annotated `ModuleType`, `Any` or not at all. What a call has made is nobody else's.
"""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "torchett"
MECHANISM = "record/patches.py"

# What is changed elsewhere, and why that is no patch.
LOADER = "of a module that is being imported: what a loader is there for"
COPY = "of a copy of the model"
WRITTEN = "of the metadata that DCP hands to a writer to be filled"
CACHE = "of the cache that torchett has put there"
STATE_OF_TORCH = "of torch's rendezvous, read from the store and written back as torch does"
GROUP = "a group of ours is entered where torch enters its own"
AS_PYTHON = "as the interpreter sets it when it runs a script, or reports an exception"
ALLOWED: dict[str, dict[str, str]] = {
    "levers/checkpoint/upload/writer.py": {
        "metadata.version": WRITTEN,
        "metadata.storage_data": WRITTEN,
        "metadata.storage_meta": WRITTEN,
    },
    "levers/compile/adapter/autotune.py": {
        "winners.tried_s": CACHE,
        "winners.tried.append((str(kwargs.get('config')), _milliseconds(timing)))": CACHE,
    },
    "levers/compile/adapter/winners.py": {
        "tuner.compile_results": "of a copy, unpickled here",
        "tuner.inductor_meta": "of a copy, unpickled here",
    },
    "launch/elastic/membership.py": {
        "state.participants[known]": STATE_OF_TORCH,
        "state.last_heartbeats.pop(known, None)": STATE_OF_TORCH,
        "state.deadline": STATE_OF_TORCH,
    },
    "levers/checkpoint/frameworks/torchtitan.py": {
        "dataloader.generator": "of a loader that has none: its seed is drawn elsewhere",
    },
    "levers/checkpoint/preemption/transformers.py": {
        "control.should_save": "what a callback of the Trainer is there to set",
        "control.should_evaluate": "what a callback of the Trainer is there to set",
    },
    "launch/elastic/rank_store.py": {"group.master_port": "the worker group of our own agent"},
    "launch/standby/fast_exit.py": {"pool.running": "its process is killed, this one exits"},
    "launch/standby/rank_process.py": {
        "sys.argv": AS_PYTHON,
        "sys.last_type": AS_PYTHON,
        "sys.last_value": AS_PYTHON,
        "sys.last_traceback": AS_PYTHON,
    },
    "launch/standby/rehearsal.py": {"thread.tqdm_cls.monitor": "as tqdm ends its own thread"},
    "record/plugins.py": {"module.__loader__": LOADER, "spec.loader": LOADER},
    "record/hooks/imports.py": {"module.__loader__": LOADER, "module.__spec__.loader": LOADER},
    "runs/importers/builder.py": {"given.end_s": "a row of ours"},
    "levers/startup/first_compile/precompile.py": {
        "module.require_backward_grad_sync": COPY,
        "module.require_forward_param_sync": COPY,
        "sys.excepthook": "put back as it was before a group was made",
    },
    "levers/startup/first_compile/fast_batch.py": {
        "module._compiled_call_impl": COPY,
        "module.require_backward_grad_sync": COPY,
        "module.require_forward_param_sync": COPY,
    },
    "levers/communication/groups.py": {
        "c10d._world.pg_group_ranks[made]": GROUP,
        "c10d._world.pg_names.pop(made, None)": GROUP,
        "c10d._world.pg_map[group]": GROUP,
        "c10d._world.pg_names[group]": GROUP,
        "c10d._world.pg_backend_config[group]": GROUP,
        "c10d._world.pg_to_tag[group]": GROUP,
        "c10d._world.tags_to_pg.setdefault(f'ptd:{name}', [])": GROUP,
        "c10d._world.pg_group_ranks[group]": GROUP,
    },
}
STATE = {"os.environ", "sys.path", "sys.argv", "sys.modules"}  # made to be changed
CHANGERS = {"insert", "append", "update", "setdefault", "add", "pop", "remove"}
LOOKUPS = {"getattr", "vars", "import_module", "importlib.import_module", "sys.modules.get", "find"}


class Finder(ast.NodeVisitor):
    """Assignments to attributes of foreign objects, in one module."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.scopes: list[dict[str, bool]] = [{}]  # name → whether it is foreign
        self.own: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] != "torchett":
                self.scopes[-1][alias.asname or alias.name.partition(".")[0]] = True

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            ours = (node.module or "").partition(".")[0] == "torchett"
            self.scopes[-1][alias.asname or alias.name] = not ours

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scopes[-1][node.name] = False
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.scopes[-1][node.name] = False
        scope: dict[str, bool] = {}
        given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        for arg in given:
            kind = "" if arg.annotation is None else ast.unparse(arg.annotation)
            kind = kind.strip("\"'").removesuffix(" | None")
            scope[arg.arg] = arg.arg not in ("self", "cls") and kind in ("", "Any", "ModuleType")
        self.scopes.append(scope)
        for statement in node.body:
            self.visit(statement)
        self.scopes.pop()

    def visit_For(self, node: ast.For) -> None:
        names = [n.id for n in ast.walk(node.iter) if isinstance(n, ast.Name)]
        foreign = any(self.knows(name) for name in names)
        for name in ast.walk(node.target):
            if isinstance(name, ast.Name):
                self.scopes[-1][name.id] = foreign
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        values = [node.value] * len(node.targets)
        for target, value in zip(node.targets, values, strict=True):
            self.assigned(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.assigned(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.changed(node.target)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.changed(target)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called in ("setattr", "delattr", "object.__setattr__") and self.foreign(node.args[0]):
            self.found.append((node.lineno, ast.unparse(node)))
        base = node.func.value if isinstance(node.func, ast.Attribute) else None
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in CHANGERS
            and isinstance(base, ast.Attribute)
            and self.foreign(base)
            and ast.unparse(base) not in STATE
        ):
            self.found.append((node.lineno, ast.unparse(node)))
        self.generic_visit(node)

    def assigned(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.scopes[-1][target.id] = self.foreign(value)
        elif isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
            for one, given in zip(target.elts, values, strict=False):
                self.assigned(one, given)
        else:
            self.changed(target)

    def changed(self, target: ast.expr) -> None:
        if isinstance(target, ast.Tuple):
            for one in target.elts:
                self.changed(one)
        elif isinstance(target, ast.Attribute):
            if target.attr == "cell_contents" or self.foreign(target.value):
                self.found.append((target.lineno, ast.unparse(target)))
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) not in STATE:
            base = target.value
            attribute = isinstance(base, ast.Attribute | ast.Call)
            if attribute and self.foreign(base):
                self.found.append((target.lineno, ast.unparse(target)))

    def foreign(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name):
            return self.knows(value.id)
        if isinstance(value, ast.Attribute | ast.Subscript):
            return self.foreign(value.value)
        if isinstance(value, ast.Call):
            lookup = ast.unparse(value.func) in LOOKUPS
            given = value.args and (self.foreign(value.args[0]) or "import" in ast.unparse(value))
            return lookup and bool(given or "sys.modules" in ast.unparse(value))
        if isinstance(value, ast.IfExp | ast.BoolOp | ast.NamedExpr):
            return any(
                self.foreign(one)
                for one in ast.iter_child_nodes(value)
                if isinstance(one, ast.expr)
            )
        return False

    def knows(self, name: str) -> bool:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return False


def changes(source: str) -> list[tuple[int, str]]:
    finder = Finder()
    finder.visit(ast.parse(source))
    return finder.found


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.save = 1",
        "import torch\nvars(torch)['save'] = 1",
        "import torch\nsetattr(torch.nn.Module, 'eval', 1)",
        "from torch.optim import Optimizer\nOptimizer.step = 1",
        "def f(module: ModuleType): module.save, module.load = 1, 2",
        "def f(engine): engine.step = 1",
        "import sys\nsys.modules['torch'].save = 1",
        "import sys\ntorch = sys.modules.get('torch')\nowner = torch.nn\nowner.Module = 1",
        "def f(cell: CellType): cell.cell_contents = 1",
        "import sys\nsys.meta_path.insert(0, 1)",
        "import gc\nfor owner in (gc, 3): setattr(owner, 'collect', 1)",
        "from importlib import import_module\nkind = getattr(import_module('a'), 'B')\nkind.c = 1",
    ],
)
def test_every_way_to_change_what_is_not_ours_is_seen(line: str) -> None:
    assert changes(line)


@pytest.mark.parametrize(
    "line",
    [
        "class A:\n    def f(self): self.x = 1",
        "import threading\nt = threading.Thread()\nt.daemon = True",
        "import os\nos.environ['A'] = '1'",
        "def f(found: dict[str, int]): found['a'] = 1",
        "from torchett.record import api\napi.x = 1",
    ],
)
def test_what_is_ours_is_not(line: str) -> None:
    assert not changes(line)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_foreign_object_is_changed_by_the_table_only(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    if name == MECHANISM:
        return
    allowed = ALLOWED.get(name, {})
    found = [(line, what) for line, what in changes(path.read_text()) if what not in allowed]
    assert not found, f"{name}: by record/patches.py with a row in TABLE, please: {found}"
    assert set(allowed) <= {what for _, what in changes(path.read_text())}, "no longer there"


def test_every_exception_names_a_module_that_exists() -> None:
    assert [name for name in ALLOWED if not (PACKAGE / name).exists()] == []

"""The house stands as ARCHITECTURE.md draws it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torchett"

# Who may lean on whom; `cli` may lean on all.
LEANS = {
    "model": set(),
    "record": {"model"},
    "ledger": {"model"},
    "runs": {"model", "record", "ledger", "store", "failures"},
    "launch": {"model", "record", "ledger", "runs", "store", "ship", "failures"},
    "ship": {"model", "record"},
    "report": {"model", "ledger"},
    "levers.startup": {"model", "record", "store"},
    "levers.communication": {"model", "record", "store"},
    "store": set(),
    "levers.compile": {"model", "record", "store"},
    "bench": {"model", "ledger", "runs"},
    "levers.checkpoint": {"model", "record", "store"},
    "levers.batches": {"model", "record"},
    "levers.publish": {"model", "record", "store", "levers.checkpoint"},
    "advise": {"model", "ledger", "runs", "levers.checkpoint"},
    "sinks": {"model", "ledger", "runs"},
    "failures": {"model"},
    "restarts": {"model", "runs", "failures"},
    "schedule": {"model"},
    "fleet": {"model", "record", "ledger", "runs", "store", "ship"},
    "serve": {"model", "ledger", "runs", "report", "fleet", "ship", "sinks", "store"},
}
FOLDERS = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
ROOMS = [
    *(path.name for path in FOLDERS if path.name != "levers"),
    *(f"levers.{path.name}" for path in (PACKAGE / "levers").iterdir() if path.is_dir()),
]
ROOMS = [room for room in ROOMS if "__pycache__" not in room]


def room_of(name: str) -> str:
    """The room that a dotted name of ours lies in."""
    parts = name.split(".")
    return ".".join(parts[1:3]) if parts[1] == "levers" else parts[1]


def imported(path: Path) -> set[str]:
    """Dotted names that a module imports, lazily or not."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "cli"])
def test_a_room_leans_only_on_what_it_may(room: str) -> None:
    for path in (PACKAGE / room.replace(".", "/")).rglob("*.py"):
        for name in imported(path):
            if name.startswith("torchett.") and room_of(name) in ROOMS:
                assert room_of(name) in LEANS[room] | {room}, f"{path.name} imports {name}"


def named(path: Path) -> set[str]:
    """Dotted names of our modules that stand in strings: imports that no checker sees."""
    constants = (
        n.value for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Constant)
    )
    strings = [value for value in constants if isinstance(value, str)]
    return {s.partition(":")[0] for s in strings if re.fullmatch(r"torchett(\.\w+)+(:[\w.]+)?", s)}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_no_module_of_another_in_a_string(room: str) -> None:
    for path in (PACKAGE / room.replace(".", "/")).rglob("*.py"):
        others = {room_of(name) for name in named(path)} & set(ROOMS) - {room}
        assert not others, f"{path.name} names modules of {others}"


def test_no_module_has_more_than_400_lines() -> None:
    lines = {path: path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    assert {str(path.relative_to(PACKAGE)): n for path, n in lines.items() if n > 400} == {}


def test_no_function_has_more_than_60_lines() -> None:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


def test_no_folder_has_more_than_12_modules() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    for folder in folders:
        found = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(found) <= 12, folder.relative_to(PACKAGE)


def test_what_runs_in_a_trainer_uses_the_standard_library_only() -> None:
    for room in ("model", "record"):
        for path in (PACKAGE / room).rglob("*.py"):
            if path.parent.name == "adapters" and path.stem != "phases":
                continue  # imported by the users of one framework, and so may it be
            roots = {name.split(".")[0] for name in imported(path)}
            assert roots <= sys.stdlib_module_names | {"torchett"}, path.name


def test_importing_torchett_brings_nothing_heavy() -> None:
    code = "import sys, torchett; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert not {"torch", "numpy", "click", "rich"} & set(loaded.split())


def test_the_public_names_are_these() -> None:
    import torchett

    assert torchett.__all__ == [
        "ACCOUNTS", "CheckpointError", "Checkpointer", "CorruptCheckpoint", "EttError",
        "InputError", "Keep", "PerRank", "Plan", "PublishError", "RandomState", "RunError",
        "StateMismatch", "background_imports", "blocked", "checkpoint_durable", "compile",
        "gather_objects_together", "init", "lazy_groups", "load", "publish", "remember_shapes",
        "resumed", "span", "stage", "step", "steps", "synthetic_like", "warm_up",
    ]  # fmt: skip


def test_every_room_and_command_is_in_the_documents() -> None:
    from torchett.cli.main import main

    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    assert [room for room in ROOMS if f"`{room}`" not in architecture] == []
    page = (ROOT / "docs" / "commands.md").read_text()
    assert [name for name in main.commands if f"## ett {name}" not in page] == []


def test_links_in_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_files_named_in_the_documents_exist() -> None:
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/*.md")):
        for name in re.findall(r"`([a-z_]+/[a-z_/]+\.(?:py|toml))`", page.read_text()):
            assert (ROOT / name).exists() or (PACKAGE / name).exists(), f"{page.name}: {name}"


def test_the_answers_of_where_is_what_exist() -> None:
    answers = (ROOT / "CONTRIBUTING.md").read_text().split("Answers")[1]
    for row in re.findall(r"^\| \d+ \| .*$", answers, re.MULTILINE):
        first, *others = re.findall(r"`([^`]+)`", row)
        assert (PACKAGE / first).exists(), row
        room = PACKAGE / first.split("/")[0]
        for name in others:  # beside the first, or by its own path
            assert (PACKAGE / name).exists() or list(room.rglob(name)), row

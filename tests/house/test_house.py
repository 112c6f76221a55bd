"""The house stands as ARCHITECTURE.md draws it."""

import ast
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
    "runs": {"model", "record", "ledger", "store"},
    "launch": {"model", "record", "ledger", "runs", "store"},
    "report": {"model", "ledger"},
    "startup": {"model", "record", "store"},
    "store": set(),
    "compile": {"model", "record", "store"},
    "bench": {"model", "ledger", "runs"},
    "checkpoint": {"model", "record", "store"},
    "feed": {"model", "record"},
    "sinks": {"model", "ledger", "runs"},
}
ROOMS = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]


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
    for path in (PACKAGE / room).rglob("*.py"):
        for name in imported(path):
            if name.startswith("torchett.") and name.split(".")[1] in ROOMS:
                assert name.split(".")[1] in LEANS[room] | {room}, f"{path.name} imports {name}"


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
        "Checkpointer", "Plan", "background_imports", "blocked", "checkpoint_durable", "compile",
        "gather_objects_together", "init", "lazy_groups", "remember_shapes", "stage", "step",
        "steps", "synthetic_like", "warm_up",
    ]  # fmt: skip


def test_every_room_and_command_is_in_the_documents() -> None:
    from torchett.cli.main import main

    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    assert [room for room in ROOMS if f"`{room}`" not in architecture] == []
    readme = (ROOT / "README.md").read_text()
    assert [name for name in main.commands if f"ett {name}" not in readme] == []


def test_links_in_the_documents_lead_somewhere() -> None:
    import re

    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"

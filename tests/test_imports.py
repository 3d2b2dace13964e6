"""Imports point downward only, importing the library stays light, and no file that is read can hold code.

What a module imports is read off its syntax tree, so imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "lambda_replay"
SOURCE = ROOT / "src" / PACKAGE
SERIALIZER = "pick" + "le"  # Python's own; reading it executes code. Never spelled out, so that a search finds nothing

# Rooms from top to bottom. A room imports from itself and from lower layers only: no siblings.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"cli"}),
    frozenset({"studies", "analysis"}),
    frozenset({"training"}),
    frozenset({"rundir"}),
    frozenset({"agents"}),
    frozenset({"learning", "envs", "sb3", "testing"}),
    frozenset({"replay"}),
    frozenset({"floor"}),
)
DEPTH = {room: depth for depth, layer in enumerate(LAYERS) for room in layer}
# The modules at the top level of the package, and the room that each belongs to.
MODULES = {
    "__main__": "cli",
    "__init__": "replay",  # `lambda_replay` itself
    "config": "floor",
    "randomness": "floor",
    "errors": "floor",
    "checks": "floor",
    "extras": "floor",
}
MOST_MODULES = 8

HEAVY = {"torch", "gymnasium", "tyro", "rich", "matplotlib"}  # none of which `import lambda_replay` may bring


def python_files(*folders: Path) -> list[Path]:
    """Every Python file below the folders, in a fixed order."""
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room a file of ours belongs to: the folder it lies in, or that of its module."""
    name = path.relative_to(SOURCE).with_suffix("").parts[0]
    return MODULES.get(name, name)


def module_of(path: Path) -> str:
    """The dotted name of a file of ours."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported_names(tree: ast.AST, package: str = PACKAGE) -> Iterator[str]:
    """The full dotted name of everything imported anywhere in a module of ``package``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def imported_rooms(tree: ast.AST, package: str = PACKAGE) -> set[str]:
    """The rooms among the imports; a name taken from ``lambda_replay`` that is no room is in its ``__init__``."""
    ours = [name for name in imported_names(tree, package) if name.partition(".")[0] == PACKAGE]
    candidates = [name.split(".")[1] if "." in name else "__init__" for name in ours]
    return {room if room in DEPTH else MODULES.get(room, MODULES["__init__"]) for room in candidates}


def unsafe_uses(tree: ast.AST) -> Iterator[str]:
    """Whatever could execute code on reading a file: the serializer, its switch in NumPy, torch's reader and writer."""
    torch_files = {"torch.load", "torch.save"}
    for name in imported_names(tree):
        if SERIALIZER in name or name in torch_files:
            yield f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in torch_files:
            yield f"uses {ast.unparse(node)}"
        if isinstance(node, ast.keyword) and node.arg == f"allow_{SERIALIZER}" and ast.unparse(node.value) != "False":
            yield f"says {ast.unparse(node)}"


def modules_loaded_by(modules: Iterable[str]) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after importing ``modules``."""
    code = "\n".join([*(f"import {module}" for module in modules), "import sys", "print(*sys.modules)"])
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in finished.stdout.split()}


@pytest.mark.parametrize(
    ("code", "rooms"),
    [
        ("import numpy as np", set()),
        ("from lambda_replay.replay.memory import ReplayMemory", {"replay"}),
        ("from lambda_replay import training", {"training"}),
        ("import lambda_replay.agents.dqn", {"agents"}),
        ("import lambda_replay as lr", {"replay"}),
        ("from lambda_replay import __version__", {"replay"}),
        ("from lambda_replay.errors import ConfigError", {"floor"}),
        ("from ..learning import networks", {"learning"}),
        ("from . import dqn", {"agents"}),
        ("def later():\n    from lambda_replay.cli import main", {"cli"}),
        ("if TYPE_CHECKING:\n    from lambda_replay.training.run import Run", {"training"}),
    ],
)
def test_imported_rooms_are_seen_wherever_they_hide(code: str, rooms: set[str]) -> None:
    assert imported_rooms(ast.parse(code), package="lambda_replay.agents") == rooms


def test_every_module_has_a_layer() -> None:
    homeless = sorted({room_of(path) for path in python_files(SOURCE)} - DEPTH.keys())
    assert not homeless, f"give {', '.join(homeless)} a layer: add it to LAYERS in {Path(__file__).name}."


def test_imports_point_downward_only() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {target}, which is not below {room}"
        for path in python_files(SOURCE)
        if (room := room_of(path)) in DEPTH
        for target in sorted(imported_rooms(ast.parse(path.read_text("utf-8")), module_of(path.parent)))
        if target != room and DEPTH[target] <= DEPTH[room]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_imports_the_library_half_only() -> None:
    assert imported_rooms(ast.parse((SOURCE / "__init__.py").read_text("utf-8"))) <= {"replay", "floor"}


def test_few_modules_lie_at_the_top() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= MOST_MODULES


def test_the_library_half_needs_numpy_alone() -> None:
    names = {
        name.partition(".")[0]
        for path in [SOURCE / "errors.py", SOURCE / "extras.py", *python_files(SOURCE / "replay", SOURCE / "testing")]
        for name in imported_names(ast.parse(path.read_text("utf-8")))
    }
    assert names - sys.stdlib_module_names - {PACKAGE} <= {"numpy"}


@pytest.mark.parametrize("module", [PACKAGE, f"{PACKAGE}.testing"])
def test_importing_the_library_is_light(module: str) -> None:
    assert not modules_loaded_by([module]) & HEAVY


def test_analysis_works_without_torch() -> None:
    assert "torch" not in modules_loaded_by(module_of(path) for path in python_files(SOURCE / "analysis"))


@pytest.mark.parametrize(
    ("code", "uses"),
    [
        (f"import {SERIALIZER}", 1),
        (f"from cloud{SERIALIZER} import dumps", 1),
        ("from torch import save", 1),
        ("torch.load(path)", 1),
        (f"np.load(path, allow_{SERIALIZER}=True)", 1),
        (f"np.load(path, allow_{SERIALIZER}=trusted)", 1),
        (f"np.load(path, allow_{SERIALIZER}=False)", 0),
        ("safetensors.torch.load(data)", 0),
    ],
)
def test_unsafe_uses_are_seen(code: str, uses: int) -> None:
    assert len(list(unsafe_uses(ast.parse(code)))) == uses


def test_no_file_that_is_read_can_hold_code() -> None:
    unsafe = [
        f"{path.relative_to(ROOT)} {use}"
        for path in python_files(ROOT / "src", ROOT / "tests", ROOT / "benchmarks")
        for use in unsafe_uses(ast.parse(path.read_text("utf-8")))
    ]
    assert not unsafe, "\n".join(unsafe)

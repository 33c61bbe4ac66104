"""Imports point one way, and what is meant to live without torch does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import milepost

BOTTOM = ("errors", "specs", "structured_outputs", "sampling_params", "outputs", "request", "config", "machine")

MAY_IMPORT: dict[str, set[str]] = {
    "bottom": set(),
    "cache": {"bottom"},
    "sim": {"bottom", "cache"},
    "ops": {"bottom"},
    "layers": {"bottom", "ops"},
    "models": {"bottom", "ops", "layers"},
    "engine": {"bottom", "cache", "ops", "layers", "models"},
    "server": {"bottom", "cache", "ops", "layers", "models", "engine"},
    "bench": {"bottom", "cache", "ops", "layers", "models", "engine"},
    "cli": {"bottom", "cache", "sim", "ops", "layers", "models", "engine", "server", "bench"},
}
"""Layer -> the layers that it may import, besides itself. A new module at the top needs its place here."""

OTHER_NAMES = {"__main__": "cli"}

WITHOUT_TORCH = ("bottom", "cache", "sim")
MODULES_WITHOUT_TORCH = ("milepost.engine.scheduler", "milepost.engine.line", "milepost.engine.rehearsal")


@dataclass(frozen=True)
class Import:
    """`source` imports `target`, a module's full name. `at_once`: when it is imported itself, not later in a function
    nor for type checking alone."""

    source: str
    target: str
    line: int
    at_once: bool


class Tree:
    """The modules of a package folder and who imports whom."""

    def __init__(self, folder: Path) -> None:
        files = {_module_name(folder, path): path for path in sorted(folder.rglob("*.py"))}
        self.modules = set(files)
        self.imports = {name: list(self._imports_of(name, path)) for name, path in files.items()}

    def _imports_of(self, name: str, path: Path) -> Iterator[Import]:
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node, at_once in _walk(ast.parse(path.read_text(encoding="utf-8")), at_once=True):
            for target in self._targets(node, package):
                yield Import(name, target, node.lineno, at_once)

    def _targets(self, node: ast.Import | ast.ImportFrom | ast.Call, package: str) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                # From the top package names are taken as modules, so that nothing comes round through its face.
                is_module = full in self.modules or (base == "milepost" and alias.name != "__version__")
                yield full if is_module else base
        elif node.args and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)

    def wrong_arrows(self) -> list[str]:
        return [
            f"{found.source}:{found.line} imports {found.target}: {_layer(found.source)} may not import "
            f"{_layer(found.target)}"
            for imports in self.imports.values()
            for found in imports
            if not _allowed(found)
        ]

    def torch_users(self) -> list[str]:
        """Modules that must live without torch and name it, or load it when they are imported."""
        users = []
        for name in sorted(self.modules):
            if _layer(name) in WITHOUT_TORCH or name in MODULES_WITHOUT_TORCH:
                named = [found for found in self.imports[name] if _is_torch(found.target)]
                way = [name, "torch"] if named else self._way_to_torch(name)
                users += [" -> ".join(way)] if way else []
        return users

    def _way_to_torch(self, start: str) -> list[str]:
        """Modules from `start` to torch, each loading the next when it is loaded; empty if there is no way."""
        ways = [[start]]
        seen = {start}
        for way in ways:
            for target in self._loads(way[-1]):
                if _is_torch(target):
                    return [*way, target]
                if target in self.modules and target not in seen:
                    seen.add(target)
                    ways.append([*way, target])
        return []

    def _loads(self, name: str) -> list[str]:
        """What importing `name` imports at once; a module's packages come with it."""
        targets = [found.target for found in self.imports[name] if found.at_once]
        packages = [target.rpartition(".")[0] for target in [name, *targets]]
        return [*targets, *(package for package in packages if package)]


def _module_name(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _walk(node: ast.AST, at_once: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Call, bool]]:
    if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Call) and _is_import_call(node)):
        yield node, at_once
    for child in ast.iter_child_nodes(node):
        late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        late = late or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        yield from _walk(child, at_once and not late)


def _is_import_call(node: ast.Call) -> bool:
    return ast.unparse(node.func) in ("__import__", "import_module", "importlib.import_module")


def _is_torch(target: str) -> bool:
    return target == "torch" or target.startswith("torch.")


def _layer(module: str) -> str:
    """The layer of a module of this package; "face" for the package itself, which offers names of all layers."""
    parts = module.split(".")
    if len(parts) == 1:
        return "face"
    if parts[1] in BOTTOM:
        return "bottom"
    return OTHER_NAMES.get(parts[1], parts[1])


def _allowed(found: Import) -> bool:
    if found.target.partition(".")[0] != "milepost":
        return True
    source, target = _layer(found.source), _layer(found.target)
    return source == target or "face" in (source, target) or target in MAY_IMPORT.get(source, set())


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(Path(milepost.__file__).parent)


def test_every_module_has_a_layer(tree: Tree) -> None:
    layers = {_layer(module) for module in tree.modules}
    assert layers <= {*MAY_IMPORT, "face"}, "give the new module its place in MAY_IMPORT or BOTTOM"


def test_imports_point_one_way(tree: Tree) -> None:
    assert tree.wrong_arrows() == []


def test_torch_stays_out(tree: Tree) -> None:
    assert tree.torch_users() == []


# The walker itself, on trees with a planted fault

CLEAN = {
    "__init__.py": "__version__ = '1'\ndef __getattr__(name):\n    from milepost.engine import llm\n    return llm",
    "specs.py": "BLOCK_SIZE = 16",
    "request.py": "from milepost import __version__, specs",
    "cache/__init__.py": "",
    "cache/keys.py": "from milepost.specs import BLOCK_SIZE",
    "cache/pool.py": "from . import keys\nfrom ..specs import BLOCK_SIZE",
    "models/__init__.py": "import torch",
    "engine/__init__.py": "",
    "engine/llm.py": "import torch\nfrom milepost.cache import keys\nfrom milepost.models import llama",
    "cli/main.py": "from milepost.engine import llm",
}


def tree_with(folder: Path, planted: dict[str, str]) -> Tree:
    for name, text in (CLEAN | planted).items():
        path = folder / "milepost" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(folder / "milepost")


def test_a_clean_tree_passes(tmp_path: Path) -> None:
    clean = tree_with(tmp_path, {})
    assert clean.wrong_arrows() == []
    assert clean.torch_users() == []


WRONG_ARROWS = {
    "plain": {"cache/keys.py": "import milepost.engine.llm"},
    "from a package": {"cache/keys.py": "from milepost.engine import llm"},
    "from the top": {"cache/keys.py": "from milepost import engine"},
    "through the face": {"cache/keys.py": "from milepost import LLM"},
    "relative": {"cache/keys.py": "from ..engine import llm"},
    "relative to the top": {"cache/keys.py": "from .. import engine"},
    "in a function": {"cache/keys.py": "def late():\n    from milepost.engine import llm"},
    "in a method": {"cache/keys.py": "class A:\n    def late(self):\n        import milepost.engine.llm"},
    "for types": {"cache/keys.py": "if TYPE_CHECKING:\n    from milepost.engine import llm"},
    "by name": {"cache/keys.py": "import importlib\nimportlib.import_module('milepost.engine.llm')"},
    "upwards from the engine": {"engine/llm.py": "from milepost.cli import main"},
    "sideways": {"models/__init__.py": "from milepost.cache import keys"},
    "from the bottom": {"specs.py": "from milepost.cache import keys"},
}


@pytest.mark.parametrize("how", WRONG_ARROWS)
def test_a_wrong_arrow_is_caught(how: str, tmp_path: Path) -> None:
    assert len(tree_with(tmp_path, WRONG_ARROWS[how]).wrong_arrows()) == 1


TORCH = {
    "named": ({"cache/keys.py": "import torch"}, "milepost.cache.keys -> torch"),
    "a part": ({"cache/keys.py": "from torch.nn import Linear"}, "milepost.cache.keys -> torch"),
    "in a function": ({"cache/keys.py": "def late():\n    import torch"}, "milepost.cache.keys -> torch"),
    "at the bottom": ({"specs.py": "import torch"}, "milepost.cache.keys -> milepost.specs -> torch"),
    "by another": (
        {"cache/pool.py": "from milepost.engine import llm"},
        "milepost.cache.pool -> milepost.engine.llm -> torch",
    ),
    "by the face": ({"__init__.py": "import torch"}, "milepost.cache.keys -> milepost -> torch"),
    "in sim": ({"sim/replay.py": "import torch"}, "milepost.sim.replay -> torch"),
    "by the scheduler": ({"engine/scheduler.py": "import torch"}, "milepost.engine.scheduler -> torch"),
}


@pytest.mark.parametrize("how", TORCH)
def test_torch_where_it_must_not_be_is_caught(how: str, tmp_path: Path) -> None:
    planted, way = TORCH[how]
    assert way in tree_with(tmp_path, planted).torch_users()


def test_a_module_without_a_layer_is_caught(tmp_path: Path) -> None:
    strange = tree_with(tmp_path, {"helpers.py": ""})
    assert "helpers" in {_layer(module) for module in strange.modules} - set(MAY_IMPORT)

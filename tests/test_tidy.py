"""The rules of the source tree: which way imports point, what the core may touch, how long things get.

A package that does not exist yet breaks no rule; a package that no rule names is a failure, so that a new
one is given its place in `MAY_IMPORT` when it is made.
"""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gapless"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 80

CORE = frozenset({"errors", "model", "content", "protocol", "views", "wire"})
HOSTS = frozenset({"client", "node", "sim", "spark"})
DOORS = frozenset({"cli", "demo", "web"})

#: For each part of `gapless`, the other parts that it may import. Arrows point inwards.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "model": frozenset({"errors"}),
    "content": frozenset({"errors", "model"}),
    "protocol": frozenset({"errors", "model", "content"}),
    "views": frozenset({"errors", "model", "content"}),
    "wire": frozenset({"errors", "model", "content", "protocol"}),
    "store": CORE,
    "client": CORE | {"store"},
    "node": CORE | {"store"},
    "sim": CORE | {"store"},
    "spark": CORE | {"store", "client"},
    # What starts Spark for a node follows the registry as a client of it. The node does not know of it.
    "node/spark": CORE | {"store", "client", "node"},
    "figures": CORE | {"sim"},
    "fleet": CORE | {"node", "cli"},
    **dict.fromkeys(DOORS, CORE | HOSTS | DOORS | {"store", "__init__", "node/spark", "figures", "fleet"}),
    # A node and a client of it in one process, for programs with an event loop and without.
    "embedding": CORE | {"store", "client", "node", "node/spark"},
    "sync": CORE | {"store", "client", "embedding"},
    # The package root gathers the public names, and `python -m gapless` opens the command line.
    "__init__": CORE | HOSTS | {"store", "embedding", "sync"},
    "__main__": frozenset({"cli"}),
}

#: What the core may import from outside the standard library.
CORE_THIRD_PARTY: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    # Rows that travel as bytes are read where they are kept.
    "model": frozenset({"msgspec", "numpy", "pyarrow"}),
    "content": frozenset({"lxml", "numpy", "pyarrow", "sqlglot"}),
    # Messages of client sessions are defined once, as they travel.
    "protocol": frozenset({"msgspec", "numpy", "pyarrow"}),
    "views": frozenset({"numpy", "pyarrow", "sqlglot"}),
    "wire": frozenset({"msgspec", "numpy", "pyarrow"}),
}

#: Sockets, disks, clocks, threads and chance: what the core leaves to its host.
IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "multiprocessing",
        "os",
        "random",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
    }
)

CLOCK_METHODS = frozenset({"now", "today", "utcnow"})

#: Names of libraries that look private and are their only way.
LIBRARY_NAMES = frozenset(
    {"_1", "_Element", "_exit", "_get_j_spark_session_class", "_jdf", "_jsparkSession", "_jvm"}
)

# Put together here, so that this file does not contain what it looks for.
FORBIDDEN_TEXT = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "ana" + "conda.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "maven" + ".org",
    "maven" + ".apache.org",
    "crates" + ".io",
    "/wo" + "rk/",
    "/ro" + "ot/",
)

#: Folders that are no part of the repository, for a tree without git.
UNTRACKED_FOLDERS = frozenset(
    {".git", ".venv", ".hypothesis", "__pycache__", "build", "dist", "htmlcov", "out"}
)


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def core_files() -> list[Path]:
    return [path for path in python_files() if part_of(path) in CORE]


def part_of(path: Path) -> str:
    """The package or module directly below `gapless` that a file belongs to.

    >>> part_of(SOURCE / "model" / "ticks.py"), part_of(SOURCE / "errors.py")
    ('model', 'errors')
    >>> part_of(SOURCE / "node" / "spark" / "process.py")
    'node/spark'
    """
    inner = path.relative_to(SOURCE).with_suffix("").parts
    return inner_part(inner)


def inner_part(names: tuple[str, ...]) -> str:
    """The part that a path inside the package leads to: a room within a room where a rule names it."""
    return "/".join(names[:2]) if "/".join(names[:2]) in MAY_IMPORT else names[0]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def where(path: Path, node: ast.expr | ast.stmt) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def imported_modules(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Each import statement of a file with the full name of a module that it asks for.

    `from package import name` may ask for the module `package.name`, so that is what is given.
    """
    package = ("gapless", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            for alias in node.names:
                yield node, ".".join((*base, *([node.module] if node.module else []), alias.name))


def imported_part(module: str) -> str:
    """The part of `gapless` that a module name leads to; names of the root itself are `__init__`."""
    part = inner_part(tuple(module.split(".")[1:])) if "." in module else "__init__"
    is_module = (SOURCE / part).is_dir() or (SOURCE / f"{part}.py").is_file() or part in MAY_IMPORT
    return part if is_module else "__init__"


def dotted(node: ast.expr) -> str:
    """The text of `a.b.c`, or nothing for any other expression."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
        case _:
            return ""


def repository_files() -> list[Path]:
    """The files that git tracks or would track; without git, everything but known left-overs."""
    git = shutil.which("git")
    if git and (ROOT / ".git").exists():
        command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if listing.returncode == 0:
            return [ROOT / name for name in sorted(listing.stdout.split("\0")) if (ROOT / name).is_file()]
    return [
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file()
        and not UNTRACKED_FOLDERS.intersection(path.relative_to(ROOT).parts)
        and not any(part.endswith(("_cache", ".egg-info")) for part in path.relative_to(ROOT).parts)
    ]


def test_every_part_has_a_rule() -> None:
    parts = {part_of(path) for path in python_files()}
    assert parts <= MAY_IMPORT.keys(), f"give {sorted(parts - MAY_IMPORT.keys())} a place in MAY_IMPORT"


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_point_inwards(part: str) -> None:
    allowed = MAY_IMPORT[part] | {part}
    wrong = [
        f"{where(path, node)}: {part} must not import {module}"
        for path in python_files()
        if part_of(path) == part
        for node, module in imported_modules(path)
        if module.split(".")[0] == "gapless" and imported_part(module) not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_imports_only_the_libraries_it_is_allowed() -> None:
    wrong = [
        f"{where(path, node)}: {part_of(path)} must not import {module}"
        for path in core_files()
        for node, module in imported_modules(path)
        for top in [module.split(".")[0]]
        if top != "gapless"
        and top not in sys.stdlib_module_names
        and top not in CORE_THIRD_PARTY[part_of(path)]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_leaves_clocks_chance_and_devices_to_its_host() -> None:
    wrong = [
        f"{where(path, node)}: the core must not import {module}"
        for path in core_files()
        for node, module in imported_modules(path)
        if module.split(".")[0] in IMPURE
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_never_asks_for_the_time() -> None:
    wrong = [
        f"{where(path, node)}: time is an argument; not {dotted(node)}"
        for path in core_files()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute)
        and node.attr in CLOCK_METHODS
        and dotted(node.value).rsplit(".", maxsplit=1)[-1] in {"datetime", "date"}
    ]
    assert not wrong, "\n".join(wrong)


def shared_class_names() -> dict[str, set[str]]:
    """The public classes that have their name in more than one file, and those files."""
    homes: dict[str, set[str]] = {}
    for path in python_files():
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path.relative_to(SOURCE).as_posix())
    return {name: files for name, files in homes.items() if len(files) > 1}


def test_a_class_name_is_used_once() -> None:
    wrong = [
        f"class {name} is in {', '.join(sorted(files))}: rename all but one"
        for name, files in sorted(shared_class_names().items())
    ]
    assert not wrong, "\n".join(wrong)


def names_of_its_own(tree: ast.Module) -> set[str]:
    """What the classes and functions of a file are made of: its objects may touch each other's."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def private_reaches(path: Path) -> list[str]:
    """Where a file touches a private attribute that no class of its own has."""
    tree = parse(path)
    allowed = names_of_its_own(tree) | LIBRARY_NAMES
    return [
        f"{where(path, node)}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in allowed
        # What a base class in another file has is an object's own.
        and not (isinstance(node.value, ast.Call) and dotted(node.value.func) == "super")
    ]


def test_private_attributes_are_used_only_in_their_own_file() -> None:
    wrong = [reach for path in python_files() for reach in private_reaches(path)]
    assert not wrong, "\n".join(wrong)


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files()}
    wrong = [
        f"{path.relative_to(ROOT)}: {lines} lines, at most {FILE_LINES_MAX}"
        for path, lines in lengths.items()
        if lines > FILE_LINES_MAX
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_are_short() -> None:
    wrong = [
        f"{where(path, node)}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
        for path in python_files()
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for lines in [(node.end_lineno or node.lineno) - node.lineno + 1]
        if lines > FUNCTION_LINES_MAX
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_package_registry_or_a_folder_of_one_machine() -> None:
    wrong = []
    for path in repository_files():
        # Bytes that are not text cannot hide the plain ASCII that is looked for.
        text = path.read_bytes().decode("utf-8", errors="replace")
        wrong += [f"{path.relative_to(ROOT)}: contains {word!r}" for word in FORBIDDEN_TEXT if word in text]
    assert not wrong, "\n".join(wrong)

"""Every example in the documents runs and is true, every code is explained, every link leads somewhere.

A `python` block is run. When a `text` block follows, and the words between them end with "prints:", that is
what it must print. In a `console` block, `$ gapless ...` is run and `$ make ...` must be a target. What is
below a command is compared with what it prints; `...` stands for anything. A `toml` block is a network.
"""

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gapless.cli.main import app
from gapless.demo import simulated as sim_demo
from gapless.node.config import Limits, load_network
from gapless.protocol.network import Network
from gapless.protocol.parameters import Parameters
from gapless.sim.checkers import CHECKERS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
DOCS = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
OPERATING = ROOT / "docs" / "operating.md"
MAKEFILE = ROOT / "Makefile"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"E[1-5][0-9]{2}")


@dataclass(frozen=True)
class Block:
    """One fenced block of a document."""

    path: Path
    line: int
    language: str
    text: str
    #: The words between the block before and this one.
    lead: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@cache
def blocks() -> list[Block]:
    found: list[Block] = []
    for path in DOCS:
        text = path.read_text(encoding="utf-8")
        stop = 0
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(path, line, match[1], match[2], text[stop : match.start()].strip()))
            stop = match.end()
    return found


def of_language(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


@dataclass(frozen=True)
class Command:
    """One command of a console block, and what the document says it prints."""

    block: Block
    words: tuple[str, ...]
    output: str

    def __str__(self) -> str:
        return f"{self.block} {' '.join(self.words)}"


def commands() -> list[Command]:
    found: list[Command] = []
    for block in of_language("console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            found.append(Command(block, tuple(shlex.split(line)), output))
    return found


def gapless_commands() -> list[object]:
    """Those of our own program; a simulation that really runs counts as slow."""
    return [
        pytest.param(
            each,
            id=str(each),
            marks=pytest.mark.slow if each.words[1] == "sim" and "error:" not in each.output else [],
        )
        for each in commands()
        if each.words[0] == "gapless"
    ]


def agrees(expected: str, actual: str) -> bool:
    """Whether two outputs are equal, line ends aside, where `...` in the expected one stands for anything."""
    parts = [re.escape(part) for part in _trimmed(expected).split("...")]
    return re.fullmatch(".*?".join(parts), _trimmed(actual), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def codes_in_source() -> set[str]:
    """Every error code that the source gives to an error."""
    found: set[str] = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _CODE.fullmatch(node.value):
                found.add(node.value)
    return found


def table_rows(text: str, title: str) -> list[list[str]]:
    """The rows of the first table whose first header is `title`, without code marks."""
    lines = text.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"| {title} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.split("|")[1:-1]])
    return rows


def table_names(text: str, title: str) -> list[str]:
    """The first column of that table."""
    return [row[0] for row in table_rows(text, title)]


def anchors(path: Path) -> set[str]:
    """The anchors that the headings of a document have."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ---- examples ----------------------------------------------------------------------------------------


#: Documents whose python blocks go on with what those before them have made.
GO_ON = {"spark.md"}


def python_examples() -> list[object]:
    """Those that stand alone; one that waits for Spark counts as slow."""
    return [
        pytest.param(each, id=str(each), marks=pytest.mark.slow if waits_for_spark(each) else [])
        for each in of_language("python")
        if each.path.name not in GO_ON
    ]


def waits_for_spark(block: Block) -> bool:
    return ".create_view(" in block.text


@pytest.mark.parametrize("block", python_examples())
def test_python_examples_run_and_print_what_the_text_says(block: Block) -> None:
    if waits_for_spark(block):
        pytest.importorskip("pyspark")
    run_block(block, {"__name__": "__main__"})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GO_ON))
def test_python_examples_that_belong_together_run_one_after_the_other(name: str) -> None:
    pytest.importorskip("pyspark")
    names: dict[str, object] = {"__name__": "__main__"}
    *examples, cleaning = [block for block in of_language("python") if block.path.name == name]
    try:
        for block in examples:
            run_block(block, names)
    finally:
        run_block(cleaning, names)


def run_block(block: Block, names: dict[str, object]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, str(block), "exec"), names)
    after = blocks()[blocks().index(block) + 1 :]
    if after and after[0].language == "text" and after[0].lead.endswith("prints:"):
        assert agrees(after[0].text, printed.getvalue())


@pytest.mark.parametrize("command", gapless_commands())
def test_console_examples_print_what_the_text_says(command: Command) -> None:
    run = [sys.executable, "-m", *command.words]
    answer = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert agrees(command.output, answer.stdout + answer.stderr), answer.stdout + answer.stderr


def test_console_examples_use_programs_that_exist() -> None:
    targets = re.findall(r"^([a-z]+):", MAKEFILE.read_text(encoding="utf-8"), re.MULTILINE)
    for command in commands():
        assert command.words[0] in {"gapless", "make"}, f"{command}: nobody checks this"
        if command.words[0] == "make":
            assert command.words[1] in targets, f"{command}: there is no such target"


@pytest.mark.slow
def test_the_demonstration_ends_as_the_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [each for each in of_language("text") if each.lead.endswith("Its output includes:")]
    monkeypatch.setattr(sim_demo, "SEEDS", range(5, 6))
    result = CliRunner().invoke(app, ["sim", "--demo", "--jobs", "1"])
    printed = _trimmed(result.output)
    assert result.exit_code == 0
    missing = [line for line in _trimmed(block.text).splitlines() if line not in printed]
    assert not missing, printed


@pytest.mark.parametrize("block", of_language("toml"), ids=str)
def test_networks_in_the_documents_are_networks(block: Block) -> None:
    """With addresses it is a whole network file, and without only the network of it."""
    whole = "[addresses]" in block.text
    network = load_network(block.text, str(block)).network if whole else Network.load(block.text, str(block))
    assert network.pubends


def test_dots_stand_for_anything_and_for_nothing_else() -> None:
    assert agrees("seed ...: ok\n...end", "seed 0x1: ok  \nmore\nlines\nend\n")
    assert not agrees("seed ...: ok", "seed 0x1: FAILED")
    assert not agrees("one\n", "one\ntwo\n")


# ---- tables ------------------------------------------------------------------------------------------


def test_every_error_code_is_explained() -> None:
    text = OPERATING.read_text(encoding="utf-8")
    explained = re.findall(r"^\| (E[1-5]\d\d) \|", text, re.MULTILINE)
    assert explained == sorted(set(explained)), "codes stand in order, and once"
    assert codes_in_source() - set(explained) == set(), "not explained"
    assert set(explained) - codes_in_source() == {"E101"}, "explained, but nothing reports it"


def test_every_parameter_is_advised_on() -> None:
    advised = table_names(OPERATING.read_text(encoding="utf-8"), "parameter")
    assert advised == [each.name for each in fields(Parameters)]


def test_every_limit_is_listed_with_its_default() -> None:
    text = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    listed = {row[0]: row[-1] for row in table_rows(text[text.index("## Limits") :], "key")}
    assert listed == {each.name: str(getattr(Limits(), each.name)) for each in fields(Limits)}


def test_every_checker_is_explained() -> None:
    assert table_names(OPERATING.read_text(encoding="utf-8"), "checker") == list(CHECKERS)


def test_the_guarantees_name_checkers_that_exist() -> None:
    listed = re.findall(r"checkers? ((?:`\w+`(?:, | and )?)+)", GUARANTEES.read_text(encoding="utf-8"))
    named = [name for part in listed for name in re.findall(r"`(\w+)`", part)]
    assert set(named) <= set(CHECKERS)
    assert len(named) > len(CHECKERS) // 2


def test_the_guarantees_name_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.(?:py|txt))(?:::(\w+))?`", GUARANTEES.read_text(encoding="utf-8"))
    assert len(named) > 9
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8") if test else (ROOT / file).exists()


def test_every_message_that_names_two_things_has_a_check_with_a_test_that_exists() -> None:
    text = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    table = text[text.index("| message | what belongs together |") :].split("\n\n", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) > 30
    assert all(len(row) == 4 for row in rows)
    tests = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py"))
    assert [row[3] for row in rows if f"def {row[3].strip('`')}(" not in tests] == []
    # Every kind of message from a client or a broker that can name two things is there.
    named = {name.strip() for row in rows for name in row[0].split(",")}
    kinds = set(re.findall(r"^\| `[012][0-9a-f]` \| (\w+) \|", text, re.MULTILINE))
    unrelated = {"HELLO", "WELCOME", "REFUSE", "PING", "PONG"}
    assert kinds - unrelated <= named


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/adr/*.md")), ids=lambda path: path.stem)
def test_a_decision_is_one_page_in_four_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# ADR {int(path.stem[:4])}: ")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "What we gave up", "What would make us revisit it"]
    assert len(text.splitlines()) <= 70


# ---- links -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    wrong = []
    for link in _LINK.findall(text):
        if link.startswith(("https://", "http://")):
            continue
        target, _, anchor = link.partition("#")
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(link)
    assert not wrong


def test_clauses_that_documents_mention_exist() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\*\*(\d+\.\d+)\*\*", protocol, re.MULTILINE))
    for path in DOCS:
        text = path.read_text(encoding="utf-8")
        for listed in re.findall(r"[Cc]lauses? (\d+\.\d+(?:(?:,| and| to) \d+\.\d+)*)", text):
            for number in re.findall(r"\d+\.\d+", listed):
                assert number in known, f"{path.name} mentions clause {number}"
    # In architecture.md and in the note of protocol.md, numbers in parentheses are clauses.
    for whole in ((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"), protocol):
        text = _FENCE.sub("", whole)
        for inside in re.findall(r"\((\d+\.\d+(?:(?:,| and| to)\s\d+\.\d+)*)\)", text):
            for number in re.findall(r"\d+\.\d+", inside):
                assert number in known, f"clause {number} is mentioned"

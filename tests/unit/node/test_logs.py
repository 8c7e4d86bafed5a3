"""Lines of logs: for programs, for people, and not a thousand times the same."""

import ast
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.node import logs
from gapless.node.logs import REPEATS, Form, configure, event_log

ROOT = Path(__file__).parents[3]
log = event_log("gapless.test")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Leave the logging of the test run as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    REPEATS.sweep(all_of_them=True)
    yield
    REPEATS.sweep(all_of_them=True)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(form: Form | None = None, *, verbose: bool = False) -> io.StringIO:
    stream = io.StringIO()
    configure("s1", form=form, verbose=verbose, stream=stream)
    return stream


def test_a_line_of_json_has_everything_a_program_looks_for() -> None:
    stream = lines()  # no terminal, so JSON
    log.warning("link_down", neighbour="b1", seconds=1.5)
    told = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "warning",
        "broker": "s1",
        "logger": "gapless.test",
        "event": "link_down",
        "neighbour": "b1",
        "seconds": 1.5,
    }


def test_a_line_for_people_is_one_line() -> None:
    stream = lines("text")
    log.info("link_failed", reason='no "route"\nto host', neighbour="b1")
    assert stream.getvalue()[13:] == 'info    link_failed reason="no \\"route\\"\\nto host" neighbour=b1\n'


def test_a_bug_is_told_with_its_traceback() -> None:
    stream = lines("json")
    try:
        raise RuntimeError("a bug")
    except RuntimeError:
        logging.getLogger("asyncio").exception("Exception in callback %s", "x")
    told = json.loads(stream.getvalue())
    assert told["event"] == "Exception in callback x"
    assert "RuntimeError: a bug" in told["exception"]


def test_details_are_told_on_demand() -> None:
    stream = lines("json")
    log.debug("client_gone")
    assert not stream.getvalue()
    stream = lines("json", verbose=True)
    log.debug("client_gone")
    assert json.loads(stream.getvalue())["event"] == "client_gone"


def test_what_repeats_is_told_when_it_begins_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = lines("json")
    for number in range(1_000):
        log.repeated("peer_refused", by="10.0.0.9", number=number)
    log.repeated("peer_refused", by="10.0.0.10", number=7)
    assert [json.loads(line)["number"] for line in stream.getvalue().splitlines()] == [0, 7]
    REPEATS.sweep()
    assert len(stream.getvalue().splitlines()) == 2, "its time has not come yet"
    monkeypatch.setattr(logs, "REPEAT_SECONDS", 0.0)
    REPEATS.sweep()
    told = [json.loads(line) for line in stream.getvalue().splitlines()[2:]]
    assert [(line["number"], line["repeated"]) for line in told] == [(999, 999)]
    # What does not come again is forgotten, and would be news.
    REPEATS.sweep()
    log.repeated("peer_refused", by="10.0.0.10", number=8)
    assert json.loads(stream.getvalue().splitlines()[-1])["number"] == 8


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("name", ["\x1b[2J", "a\nb", "\x9b31m", "\u202egnp", "\x7f", "\u2028"])
def test_what_a_peer_has_chosen_commands_no_terminal_and_makes_no_line(form: logs.Form, name: str) -> None:
    stream = lines(form)
    log.warning("peer_refused", peer=name, reason=f"'{name}' speaks another version")
    [line] = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    logging.getLogger("somebody.else").warning("a text of another library: %s", name)
    [_, line] = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_cannot_pass_for_lines_of_the_log(form: logs.Form) -> None:
    stream = lines(form)
    try:
        raise ValueError("\x1b[2J\n12:00:00.000 info    listening")
    except ValueError:
        logging.getLogger("somebody.else").exception("failed")
    first, *others = stream.getvalue().split("\n")[:-1]
    assert "failed" in first
    assert all(line.isprintable() for line in (first, *others))
    assert all(line.startswith("  ") for line in others)


def test_troubles_of_very_many_kinds_take_no_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "REPEATS_MAX", 10)
    lines("json")
    for number in range(100):
        log.repeated("peer_refused", by=number)
    assert len(REPEATS._known) <= 10


def test_every_event_is_documented() -> None:
    documented = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = documented[documented.index("| event | level | meaning |") :].split("\n\n", 1)[0]
    assert (
        set(re.findall(r"`([a-z_]+)`(?=[^|]*\|[^|]*\|[^|]*\|$)", table, re.MULTILINE)) >= events_in_source()
    )


def events_in_source() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "src" / "gapless").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "event_log(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("debug", "info", "warning", "error", "repeated")
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "log"
                and isinstance(first := node.args[0], ast.Constant)
                and re.fullmatch("[a-z_]+", str(first.value))
            ):
                found.add(str(first.value))
    assert "listening" in found
    return found

"""What a client may not know is in no error either, and other users of the machine read nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gapless.node.security import token_hash
from tests.hostile.raw import PATIENCE_SECONDS, Heard, Raw, frame, hello, publish, publish_rows
from tests.hostile.victim import COLUMNS, TWO_TOPICS, Victim

TOKENS = f"""{TWO_TOPICS}
tokens = "tokens.toml"
"""
ENTRIES = f"""
mine = {{ sha256 = "{token_hash("mine")}", publish = ["m*"], subscribe = ["m*"] }}
boss = {{ sha256 = "{token_hash("boss")}", admin = true }}
"""


def victim(folder: Path) -> Victim:
    (folder / "tokens.toml").write_text(ENTRIES)
    return Victim(folder, TOKENS)


def answer(raw: Raw, *frames: bytes) -> Heard:
    raw.send(*frames)
    return raw.hear_kind("PUBLISH_REFUSED", "REQUEST_REFUSED", "REFUSE")


def test_a_hidden_topic_is_answered_like_one_that_does_not_exist(tmp_path: Path) -> None:
    with victim(tmp_path) as node:
        for make in (
            lambda topic: publish_rows(topic, COLUMNS, [[1.0, "x"]]),
            lambda topic: publish(topic, COLUMNS, b"this is no Arrow message"),
            lambda topic: publish(topic, {"other": "int"}, b""),
            lambda topic: publish_rows(topic, COLUMNS, [[1.0, "x"]], pubend="theirs-1"),
            lambda topic: frame(
                "SUBSCRIBE", [1, topic, "price >", None, "publisher", "now", "guaranteed", 1]
            ),
            lambda topic: frame("SUBSCRIBE", [1, topic, "", "n", "total", "earliest", "guaranteed", 1]),
            lambda topic: frame("CREATE_TOPIC", [1, topic, {"a": "int"}, ""]),
        ):
            with node.dial(token="mine") as hidden, node.dial(token="mine") as missing:
                one, other = answer(hidden, make("theirs")), answer(missing, make("absent"))
                assert one.kind == other.kind
                assert repr(one.head).replace("theirs'", "absent'") == repr(other.head)


def test_errors_name_only_topics_that_a_client_may_see(tmp_path: Path) -> None:
    with victim(tmp_path) as node, node.dial(token="mine") as raw:
        subscribe = frame("SUBSCRIBE", [1, "minx", "", None, "publisher", "now", "guaranteed", 1])
        for asked in (publish_rows("minx", COLUMNS, [[1.0, "x"]]), subscribe):
            heard = answer(raw, asked)
            assert "E141" in heard.head
            assert "there is mine" in repr(heard.head)
            assert "theirs" not in repr(heard.head)


def test_other_users_of_the_machine_cannot_read_a_nodes_files(tmp_path: Path) -> None:
    network = f"{TWO_TOPICS}\narchive.mine = true\nretention.mine = '200kB'\n"
    with Victim(tmp_path, network) as node, node.dial() as raw:
        for at in range(20):
            raw.send(publish_rows("mine", COLUMNS, [[3.5, "x" * 2_000]] * 10, first=10 * at))
            raw.hear_kind("RECEIPT")
        while not list(tmp_path.glob("data/n1/archive/mine/*.parquet")):
            assert node.page("/metrics")[0] == 200
        # While it runs, files come and go.
        assert node.stop() == 0
        for path in (tmp_path / "data").rglob("*"):
            mode = stat.S_IMODE(path.stat().st_mode)
            if path.suffix == ".parquet":
                assert mode & ~0o640 == 0, (path, oct(mode))
            else:
                assert mode & 0o077 == 0, (path, oct(mode))


def test_a_folder_with_wider_rights_is_tightened_and_its_archive_is_not(tmp_path: Path) -> None:
    with Victim(tmp_path) as node:
        node.stop()
        folder = tmp_path / "data" / "n1"
        (folder / "archive").mkdir()
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        node.start()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes.pop("n1") == 0o711
    assert modes.pop("archive") == 0o755
    assert set(modes.values()) <= {0o700, 0o600}


def events(node: Victim, name: str) -> int:
    return sum(json.loads(line)["event"] == name for line in node.log.read_text().splitlines())


def hang_up_and_wait(node: Victim, name: str) -> None:
    """Send SIGHUP, and wait for what the node says of it; it answers requests meanwhile."""
    before = events(node, name)
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGHUP)
    while events(node, name) == before:
        assert node.page("/healthz") == (200, "alive\n")


def test_sighup_adds_new_tokens_and_removes_old_ones(tmp_path: Path) -> None:
    with victim(tmp_path) as node, node.dial(token="mine") as old, node.dial(token="boss") as boss:
        fresh = f'new = {{ sha256 = "{token_hash("new")}", admin = true }}\n'
        (tmp_path / "tokens.toml").write_text(ENTRIES.splitlines()[2] + "\n" + fresh)
        hang_up_and_wait(node, "reloaded")
        assert old.hear_kind("REFUSE").head["code"] == "E185"
        assert old.hear() is None
        with Raw(node.port) as again:
            heard = again.ask(hello(token="mine"))
            assert heard is not None
            assert heard.head["code"] == "E185"
        with node.dial(token="new") as new:
            for raw in (boss, new):
                raw.send(frame("ASK_STATUS", [1]))
                assert raw.hear_kind("STATUS_REPORT")
        # Other rights for the same token: it comes back and has them.
        changed = ENTRIES.splitlines()[2].replace("admin = true", 'subscribe = ["*"]')
        (tmp_path / "tokens.toml").write_text(changed)
        hang_up_and_wait(node, "reloaded")
        refused = boss.hear_kind("REFUSE").head
        assert (refused["code"], refused["retry"]) == ("E188", True)
        assert node.stop() == 0


def test_sighup_with_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    with victim(tmp_path) as node, node.dial(token="boss") as boss:
        (tmp_path / "tokens.toml").write_text("boss = ")
        hang_up_and_wait(node, "reload_failed")
        boss.send(frame("ASK_STATUS", [1]))
        assert boss.hear_kind("STATUS_REPORT")
        with node.dial(token="mine"):
            pass
        assert node.stop() == 0


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;owned\x07", "a\nb", "\u202egnp.exe"])
def test_control_characters_in_client_names_are_escaped(name: str, tmp_path: Path) -> None:
    with Victim(tmp_path) as node:
        with Raw(node.port) as raw:
            heard = raw.ask(hello(name, role="broker"))
            assert heard is not None
            assert heard.head["code"] == "E217"
        assert node.stop() == 0
        text = node.log.read_text()
        assert name not in text
        assert all(line.isprintable() for line in text.splitlines())
        [line] = [each for each in map(json.loads, text.splitlines()) if each["event"] == "peer_refused"]
        assert name in line["reason"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A node at which people look while clients with odd names come and go."""
    with Victim(tmp_path_factory.mktemp("watched")) as node:
        yield node


@pytest.mark.parametrize("name", ["\x1b[2J\x1b]0;owned\x07", "[/red]", "[link=x]y"])
@pytest.mark.parametrize("command", [["status"], ["top", "--once"]])
def test_control_characters_are_escaped_in_status_and_why(
    name: str, command: list[str], watched: Victim
) -> None:
    with watched.dial(name) as raw:
        where = f"note = '{name}'"
        raw.send(frame("SUBSCRIBE", [1, "mine", where, None, "publisher", "now", "guaranteed", 1]))
        raw.hear_kind("CONFIRMED")
        shown = gapless(*command, "--to", f"gapless://127.0.0.1:{watched.port}")
        assert shown.returncode == 0, shown.stderr
        assert "mine" in shown.stdout
        assert is_tame(shown)


def test_control_characters_in_messages_of_a_node_are_escaped(tmp_path: Path) -> None:
    refusal = {"code": "E188", "message": "\x1b[2Jgone\nerror: E000 forged", "retry": False}
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with background("topic", "list", "--to", f"gapless://127.0.0.1:{port}") as process:
            with Raw.accepted(listening) as raw:
                assert raw.hear()
                raw.send(frame("REFUSE", refusal))
            shown = finished(process)
    assert shown.returncode == 2
    assert "gone" in shown.stderr
    assert is_tame(shown)
    assert not any(line.startswith("error: E000") for line in shown.stderr.splitlines())


def is_tame(shown: subprocess.CompletedProcess[str]) -> bool:
    return all(line.isprintable() for line in (shown.stdout + shown.stderr).splitlines())


def gapless(*arguments: str) -> subprocess.CompletedProcess[str]:
    with background(*arguments) as process:
        return finished(process)


def background(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "gapless", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

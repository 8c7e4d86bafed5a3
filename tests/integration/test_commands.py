"""The command line against a real node in a process of its own."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from gapless.cli.exits import EXIT_INTERRUPTED
from tests.integration.said import Said

COMMAND = [sys.executable, "-m", "gapless"]
TOPICS = ("trades:sym=string,price=float,sent=timestamp?", "news:id=int,doc=xml", "notes:text=string?")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with some topics, and where it listens."""
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    folder = str(tmp_path_factory.mktemp("data"))
    arguments = ["up", *topics, "--data", folder, "--listen", "127.0.0.1:0"]
    node = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert node.stdout is not None
    try:
        yield json.loads(node.stdout.readline())["listens"]
    finally:
        node.terminate()
        assert node.wait(timeout=30) == 0, "a node that is asked to stop stops in order"
        node.stdout.close()


class Reader:
    """A `gapless sub` that has begun."""

    def __init__(self, address: str, *arguments: str) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([*COMMAND, "sub", *arguments, "--to", address], text=True, **pipes)
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == f"subscribed to {arguments[0]}\n"

    def line(self) -> dict[str, object]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def rest(self) -> list[dict[str, object]]:
        printed, _ = self.process.communicate(timeout=60)
        return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def readers(address: str) -> Iterator[list[Reader]]:
    """Those that a test starts; none is left behind."""
    started: list[Reader] = []
    yield started
    for reader in started:
        if reader.process.poll() is None:
            reader.process.kill()
        reader.process.communicate(timeout=60)


def test_what_is_published_is_printed(
    gapless: Callable[..., Said], address: str, tmp_path: Path, readers: list[Reader]
) -> None:
    readers.append(reader := Reader(address, "trades", "--where", "price > 5", "--limit", "3"))
    file = tmp_path / "more.jsonl"
    file.write_text('{"sym": "B", "price": 7}\n\n{"sym": "C", "price": 2}\n')
    event = '{"sym": "A", "price": 6, "sent": "2026-01-31"}'
    single = gapless("pub", "trades", event, "--file", str(file), "--to", address)
    assert (single.status, single.out) == (0, "")
    assert single.err.startswith("published 3 events, durable, ")
    lines = gapless("pub", "trades", "--json", "--to", address, stdin='{"sym": "D", "price": 9.5}\n\n')
    account = json.loads(lines.out)
    assert (account["topic"], account["published"]) == ("trades", 1)
    [name] = account["events"]
    assert name == f"trades:{account['pubends']['trades']['first']}"
    printed = reader.rest()
    assert [row["sym"] for row in printed] == ["A", "B", "D"]
    assert printed[0]["sent"] == "2026-01-31T00:00:00+00:00"


def test_tables_are_published_with_the_types_of_the_topic(
    gapless: Callable[..., Said], address: str, tmp_path: Path, readers: list[Reader]
) -> None:
    readers.append(reader := Reader(address, "trades", "--limit", "6"))
    table = pa.table({"price": pa.array([1, 2], pa.int32()), "sym": pa.array(["P", "Q"])})
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    (tmp_path / "table.csv").write_text("sym,price,sent\nNA,1.5,\nnull,2,2026-01-31T12:00:00Z\n")
    (tmp_path / "odd.txt").write_text("sym,price\n7,3\n")
    files = ["--file", str(tmp_path / "table.parquet"), "--file", str(tmp_path / "table.csv")]
    assert gapless("pub", "trades", *files, "--to", address).status == 0
    odd = gapless("pub", "trades", "--file", str(tmp_path / "odd.txt"), "--format", "csv", "--to", address)
    assert odd.err.startswith("published 1 event, durable, ")
    piped = gapless("pub", "trades", "-", "--format", "csv", "--to", address, stdin='sym,price\n"",4\n')
    assert piped.status == 0, piped.err
    rows = [(row["sym"], row["price"], row["sent"]) for row in reader.rest()]
    assert rows == [
        ("P", 1.0, None),
        ("Q", 2.0, None),
        ("NA", 1.5, None),
        ("null", 2.0, "2026-01-31T12:00:00+00:00"),
        ("7", 3.0, None),
        ("", 4.0, None),
    ]


def test_a_bad_row_ends_the_publishing_exactly_there(
    gapless: Callable[..., Said], address: str, tmp_path: Path, readers: list[Reader]
) -> None:
    readers.append(reader := Reader(address, "trades"))
    good = '{"sym": "before", "price": 1}\n'
    bad = tmp_path / "bad.jsonl"
    bad.write_text(good * 3 + '{"sym": "bad", "price": "much"}\n' + good * 3)
    result = gapless("pub", "trades", "--file", str(bad), "--to", address)
    assert result.status == 2
    reason = f"error: E158 {bad} line 4: column 'price' (float): \"much\" is not a number"
    assert result.err == f"{reason}; 3 events before it were published\n"
    table = tmp_path / "bad.csv"
    table.write_text("sym,price\nbefore,1\n,2\nempty,\nafter,3\n")
    result = gapless("pub", "trades", "--file", str(table), "--to", address)
    assert result.err.startswith(f"error: E112 {table} row 3: column 'price' is missing")
    assert result.err.endswith("; 2 events before it were published\n")
    assert gapless("pub", "trades", '{"sym": "end", "price": 0}', "--to", address).status == 0
    got = [reader.line()["sym"] for _ in range(6)]
    assert got == ["before"] * 4 + ["", "end"]


def test_much_is_published_in_order(
    gapless: Callable[..., Said], address: str, tmp_path: Path, readers: list[Reader]
) -> None:
    readers.append(reader := Reader(address, "news", "--limit", "40000"))
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f'{{"id": {at}, "doc": "<a n=\'{at}\'/>"}}\n' for at in range(40_000)))
    result = gapless("pub", "news", "--file", str(file), "--batch", "1000", "--to", address)
    assert result.err.startswith("published 40,000 events, durable, "), result.err
    rows = reader.rest()
    assert [row["id"] for row in rows] == list(range(40_000))
    assert rows[-1]["doc"] == "<a n='39999'/>"


def test_a_rate_is_kept(gapless: Callable[..., Said], address: str) -> None:
    events = ['{"text": "x"}'] * 30
    account = json.loads(gapless("pub", "notes", *events, "--rate", "100", "--json", "--to", address).out)
    assert account["published"] == 30
    # 30 events at 100 a second: the last of them 0.28 s or more behind the first.
    assert account["pubends"]["notes"]["last"] - account["pubends"]["notes"]["first"] >= 250_000


def test_documents_are_found_by_their_pattern(
    gapless: Callable[..., Said], address: str, tmp_path: Path, readers: list[Reader]
) -> None:
    arguments = ("news", "--xpath", '/n[@k="yes"]//b', "--where", "id > 1", "--names", "--limit", "1")
    readers.append(reader := Reader(address, *arguments))
    document = "<n k='yes'><a><b/></a></n>"
    events = [json.dumps({"id": at, "doc": document}) for at in (1, 2)]
    account = json.loads(gapless("pub", "news", *events, "--json", "--to", address).out)
    [row] = reader.rest()
    assert row["event"] == {"id": 2, "doc": document}
    assert f"{row['pubend']}:{row['tick']}" == account["events"][1]


def test_ctrl_c_and_a_reader_that_leaves_end_a_subscription_well(address: str, readers: list[Reader]) -> None:
    readers.append(stopped := Reader(address, "notes"))
    stopped.process.send_signal(signal.SIGINT)
    assert stopped.process.wait(timeout=30) == EXIT_INTERRUPTED
    readers.append(asked := Reader(address, "notes"))
    asked.process.send_signal(signal.SIGTERM)
    assert asked.process.wait(timeout=30) == 0
    readers.append(left := Reader(address, "notes"))
    assert left.process.stdout is not None
    # Nothing comes: it notices all the same.
    left.process.stdout.close()
    assert left.process.wait(timeout=30) == 0
    assert left.process.stderr is not None
    assert left.process.stderr.read() == ""
    left.process.stdout = None


def test_a_named_subscription_resumes_after_the_printed_events(
    gapless: Callable[..., Said], address: str, readers: list[Reader]
) -> None:
    named = ("notes", "--name", "audit")
    readers.append(first := Reader(address, *named))
    texts = [json.dumps({"text": str(at)}) for at in range(4)]
    assert gapless("pub", "notes", *texts[:2], "--to", address).status == 0
    assert [first.line()["text"], first.line()["text"]] == ["0", "1"]
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(timeout=30) == EXIT_INTERRUPTED
    assert gapless("pub", "notes", *texts[2:], "--to", address).status == 0
    again = gapless("sub", *named, "--limit", "2", "--ack", "none", "--to", address)
    assert [json.loads(line)["text"] for line in again.out.splitlines()] == ["2", "3"]
    repeated = gapless("sub", *named, "--limit", "1", "--json", "--to", address)
    assert [json.loads(line)["text"] for line in repeated.out.splitlines()] == ["2"]
    assert gapless("sub", *named, "--forget", "--to", address).err == "forgot 'audit'\n"
    listed = json.loads(gapless("status", "--json", "--to", address).out)["subscriptions"]["list"]
    assert not [each for each in listed if each["name"] == "audit"]


def test_a_closed_pipe_is_not_an_error_of_match(tmp_path: Path) -> None:
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f'{{"n": {at}}}\n' for at in range(100_000)))
    command = [*COMMAND, "match", "--where", "n >= 0", str(file)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as match:
        assert match.stdout is not None
        assert match.stdout.readline() == '{"n": 0}\n'
        match.stdout.close()
        assert match.wait(timeout=60) == 0
        assert match.stderr is not None
        assert match.stderr.read() == ""


def test_events_are_shown_as_a_table(
    gapless: Callable[..., Said], address: str, readers: list[Reader]
) -> None:
    readers.append(reader := Reader(address, "trades", "--table", "--limit", "2", "--names"))
    events = ['{"sym": "IBM", "price": 1}', '{"sym": "SAP", "price": 22.5, "sent": "2026-01-31"}']
    assert gapless("pub", "trades", *events, "--to", address).status == 0
    printed, _ = reader.process.communicate(timeout=60)
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    assert lines[0] == ["pubend", "tick", "sym", "price", "sent"]
    assert lines[2][2:] == ["IBM", "1.0"]
    assert lines[3][2:] == ["SAP", "22.5", "2026-01-31T00:00:00+00:00"]
    assert lines[4][:2] == ["2", "events,"]


#: What a person may get wrong, and how the answer begins.
MISTAKES = {
    "pub news2 {}": "error: E141 there is no topic 'news2': there is ",
    "pub trades {": "error: E158 the event: not JSON: ",
    "pub trades [3]": "error: E158 the event: not an object",
    'pub trades {"prise":3}': "error: E111 the event: topic 'trades' has no column 'prise': it has sym,",
    'pub trades {"sym":"A","price":"x"}': "error: E158 the event: column 'price' (float): \"x\" is not a n",
    'pub trades {"price":1}': "error: E112 the event: column 'sym' is missing",
    'pub trades {"sym":"\udcff","price":1}': "error: E158 the event: not JSON: ",
    "pub trades --file nothing.jsonl": "error: E156 nothing.jsonl: cannot be read: ",
    "pub trades --file README.md": "error: E157 README.md: what kind of file is this?",
    "pub trades --file pyproject.toml --format parquet": "error: E156 pyproject.toml: not a Parquet file",
    "pub trades --format xls": "error: E150 --format takes jsonl, csv, parquet or xml, got 'xls'",
    "pub trades --rate fast": "error: E150 --rate takes a number from 0.001 to 1e+09, got 'fast'",
    "pub trades - -": "error: E151 standard input can be read once",
    "pub trades --ca nothing.pem {}": "error: E156 nothing.pem: cannot be read: no such file",
    "pub trades --ca pyproject.toml {}": "error: E156 pyproject.toml: no certificate or key: ",
    "sub news2": "error: E141 there is no topic 'news2'",
    "sub trades --where prise>3": "error: E161 at 1: no column 'prise'",
    "sub trades --xpath /a": "error: E161 --xpath: topic 'trades' has no xml column",
    "sub news --xpath /a[": "error: E170 ",
    "sub news --xpath a": "error: E171 ",
    "sub news --xpath /a --column id": "error: E161 --column id: there is no such xml column: there is doc",
    "sub trades --from monday": "error: E150 --from takes now, earliest, a tick or a time",
    "sub trades --from ²": "error: E150 --from takes now, earliest, a tick or a time",
    f"sub trades --from {'9' * 5000}": "error: E150 --from takes now, earliest, a tick or a time",
    "sub trades --order any": "error: E150 --order takes publisher or total, got 'any'",
    "sub trades --limit 0": "error: E150 --limit takes a whole number from 1 on, got '0'",
    "sub trades --json --table": "error: E151 choose one of --table and --json",
    "sub trades --forget": "error: E151 --forget goes with --name",
    "sub trades --name typo --forget": "error: E142 there is no subscription 'typo' at this node",
    "sub trades --column doc": "error: E151 --column goes with --xpath",
    "status --jsn": "error: E149 no such option: --jsn",
    "pipeline --state disk": "error: E149 invalid value for '--state': 'disk' is not one of",
    "top nothing.toml": "error: E151 the network description and --to both say where to ask",
    "top --every never": "error: E150 --every takes seconds from 0.2 to 3600, got 'never'",
    "why trades audit": "error: E150 an event is written PUBEND:TICK, such as ",
    "why trades:² audit": "error: E150 an event is written PUBEND:TICK, such as ",
    f"why trades:{'9' * 5000} audit": "error: E150 an event is written PUBEND:TICK, such as ",
    "why trades:5 typo#1": "error: E142 there is no subscription 'typo#1' at node",
    "why trades:5": "error: E149 missing argument 'SUBSCRIPTION'",
    "why other:5 audit": "error: E143 there is no pubend 'other': there is news, notes, trades",
    "why trades:5 audit": "error: E142 there is no subscription 'audit' at node",
    "bench --size 1": "error: E150 --size takes a whole number from 9 to 1048576, got '1'",
    "bench --in-memory": "error: E151 --in-memory and --data are for a node of our own",
    "bench --plot nowhere/x.png": "error: E154 --plot nowhere/x.png: cannot be written",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_status_two(address: str, gapless: Callable[..., Said], line: str) -> None:
    said = gapless(*line.split(), "--to", address)
    first, *more = said.err.splitlines()
    assert (said.status, said.out) == (2, "")
    assert first.startswith(MISTAKES[line]), said.err
    # Below a mistake in a condition stands the place.
    assert not more or more[-1].strip() == "^", said.err


@pytest.mark.parametrize(
    "command", ["pub trades {}", "sub trades", "status", "top", "top --json", "why trades:5 audit", "bench"]
)
def test_every_command_says_what_is_wrong_with_an_address(command: str, gapless: Callable[..., Said]) -> None:
    wrong = {
        "tcp://localhost": "error: E190 'tcp://localhost' is not an address: write host:port",
        "gapless://localhost:x": "error: E190 'localhost:x' is not an address: write host:port",
        # Nobody may listen there without being asked to.
        "gapless://127.0.0.1:1": "error: E401 no node answers: 127.0.0.1:1: ",
    }
    for address, reason in wrong.items():
        said = gapless(*command.split(), "--to", address)
        assert (said.status, said.out) == (2, "")
        assert said.err.startswith(reason)
        assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["pub notes {}", "status", "top --once", "topic list", "view list"])
def test_an_address_needs_no_scheme(command: str, gapless: Callable[..., Said], address: str) -> None:
    said = gapless(*command.split(), "--to", address.removeprefix("gapless://"))
    assert said.status == 0, said.err


@pytest.mark.parametrize("command", ["status", "top --once", "topic list", "sub notes", "why other:5 x"])
def test_the_environment_says_where_to_ask(
    command: str, gapless: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAPLESS_TO", "gapless://127.0.0.1:1")
    assert gapless(*command.split()).err.startswith("error: E401 no node answers: 127.0.0.1:1: ")


@pytest.mark.parametrize("command", ["status --json", "sub trades --from earliest --limit 1", "topic list"])
def test_output_to_a_full_disk_is_reported(address: str, command: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        said = subprocess.run(
            [*COMMAND, *command.split(), "--to", address], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, timeout=60,
        )  # fmt: skip
    assert said.returncode == 2
    assert said.stderr.splitlines()[-1] == (
        "error: E154 standard output cannot be written: No space left on device: make room, and retry"
    )


def test_ctrl_c_ends_publishing_from_a_pipe_and_reports_durable_events(
    address: str, readers: list[Reader]
) -> None:
    readers.append(Reader(address, "notes"))
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*COMMAND, "pub", "notes", "--to", address], text=True, **pipes) as publisher:
        assert publisher.stdin is not None
        assert publisher.stderr is not None
        publisher.stdin.write('{"text": "one"}\n')
        publisher.stdin.flush()
        assert readers[0].line() == {"text": "one"}
        publisher.send_signal(signal.SIGINT)
        # The pipe stays open: what waits for more of it must not keep the command from ending.
        assert publisher.wait(timeout=60) == 130
        assert re.fullmatch(r"stopped: published 1 event, durable, .* s\n", publisher.stderr.read())


def test_closed_standard_input_is_reported(address: str) -> None:
    line = f"{sys.executable} -m gapless pub trades --to {address} <&-"
    said = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == "error: E156 standard input is closed: name events or a file\n"


def test_the_status_of_several_nodes_is_printed(address: str, gapless: Callable[..., Said]) -> None:
    told = gapless("status", "--to", address, "--to", "gapless://127.0.0.1:1")
    assert told.status == 0
    assert told.err.startswith("gapless://127.0.0.1:1 does not answer: E401 ")
    assert "broker        node in cell all: repository, edge\n" in told.out
    assert "topic news: id int, doc xml\n" in told.out
    lines = gapless("status", "--to", address, "--to", "gapless://127.0.0.1:1", "--json").out.splitlines()
    report, silent = map(json.loads, lines)
    assert report["topics"]["notes"] == {"text": "string?"}
    assert silent["address"] == "gapless://127.0.0.1:1"


def test_top_shows_who_is_down(
    address: str, gapless: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tmp_path / "two.toml"
    place = address.removeprefix("gapless://")
    network.write_text(
        'cells = {A = ["node"], B = ["gone"]}\nlinks = ["A--B"]\n'
        'topics.t = {x = "int"}\npubends.t = {topic = "t", broker = "node"}\n'
        f'[addresses]\nnode = "{place}"\ngone = "127.0.0.1:1"\n'
    )
    shown = gapless("top", str(network), "--once")
    assert shown.status == 0
    assert shown.out.startswith("two.toml: 2 brokers, 1 down; ")
    assert "gone is down: E401 " in shown.out
    brokers = json.loads(gapless("top", str(network), "--once", "--json").out)["brokers"]
    assert [(each["broker"], each.get("down", False)) for each in brokers] == [
        ("gone", True),
        ("node", False),
    ]
    assert brokers[1]["process"]["resident_bytes"] > 2**20
    monkeypatch.setenv("GAPLESS_TO", "gapless://127.0.0.1:1")
    assert gapless("top", str(network), "--json").status == 0, (
        "what the file says goes before the environment"
    )
    both = gapless("top", str(network), "--to", address)
    assert both.err.startswith("error: E151 the network description and --to both")


def test_why_is_asked_on_the_command_line(
    address: str, gapless: Callable[..., Said], readers: list[Reader]
) -> None:
    readers.append(Reader(address, "trades", "--where", "price > 100"))
    account = json.loads(gapless("pub", "trades", '{"sym": "A", "price": 99}', "--json", "--to", address).out)
    listed = json.loads(gapless("status", "--json", "--to", address).out)["subscriptions"]["list"]
    name = next(each["subscription"] for each in listed if each["where"] == "price > 100")
    said = gapless("why", account["events"][0], name, "--to", address)
    assert said.status == 0
    first, *evidence = said.out.splitlines()
    assert first == f"NO: the condition of '{name}' rejects the event: price > 100.0 (price is 99.0)."
    assert any('{"sym": "A", "price": 99.0, "sent": null}' in line for line in evidence)
    told = json.loads(gapless("why", account["events"][0], name, "--json", "--to", address).out)
    assert (told["verdict"], told["edge"]) == ("rejected", "node")
    assert gapless("why", account["events"][0], name.removeprefix("client "), "--to", address).out == said.out


def test_a_missing_argument_of_an_option_has_a_code(gapless: Callable[..., Said]) -> None:
    assert gapless("sub", "trades", "--name").err.startswith(
        "error: E149 option '--name' requires an argument"
    )


def test_a_name_that_comes_back_with_another_condition_is_told_which_one_it_had(
    gapless: Callable[..., Said], address: str
) -> None:
    line = ("sub", "trades", "--name", "changed", "--from", "earliest", "--limit", "1", "--ack", "none")
    assert gapless("pub", "trades", '{"sym": "A", "price": 200}', "--to", address).status == 0
    said = gapless(*line, "--where", "price > 100", "--to", address)
    assert "another condition" not in said.err
    said = gapless(*line, "--where", "price > 100", "--to", address)
    assert "another condition" not in said.err
    said = gapless(*line, "--where", "price < 0", "--to", address)
    assert (
        "'changed' had another condition, which still selects events from before now: price > 100" in said.err
    )
    assert json.loads(said.out)["price"] > 100
    assert gapless("sub", "trades", "--name", "changed", "--forget", "--to", address).status == 0


def test_a_node_is_measured(gapless: Callable[..., Said], tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    arguments = ["--events", "300", "--rate", "600", "--in-memory", "--subscribers", "2", "--json"]
    said = gapless("bench", *arguments, "--plot", str(plot))
    assert said.status == 0, said.err
    report = json.loads(said.out)
    assert (report["subscribers"], report["throughput"]) == (2, None)
    assert report["latency"]["events"] == 300
    times = report["latency"]["delivery_ms"]
    assert 0 < times["p50"] <= times["p99"] <= times["p99.9"] <= times["max"]
    assert plot.read_text().startswith("<?xml")


def test_both_parts_of_a_measurement_are_reported(address: str, gapless: Callable[..., Said]) -> None:
    said = gapless("bench", "--to", address, "--events", "2000", "--batch", "100", "--json")
    assert said.status == 0, said.err
    throughput = json.loads(said.out)["throughput"]
    assert throughput["events"] == 2_000
    assert throughput["delivered_per_s"] > 0


def test_the_topic_of_a_measurement_keeps_events_until_they_are_acknowledged(
    gapless: Callable[..., Said], address: str
) -> None:
    for _ in range(2):
        said = gapless("bench", "--to", address, "--events", "200", "--batch", "100", "--json")
        assert said.status == 0, said.err
    assert said.err == "", "only the first run says that it made a topic"
    report = json.loads(gapless("status", "--json", "--to", address).out)
    [pubend] = [each for each in report["pubends"] if each["topic"] == "gapless-bench"]
    assert pubend["retention"] == "acknowledged"

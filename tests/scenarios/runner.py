"""How is a scenario run? Each command line becomes one call of the host; its lines are the output.

The language is small on purpose: README.md beside this file lists all of it. A command that cannot be
carried out raises a ScenarioError that names file and line; a broken invariant of a machine, or a delivery
that breaks the guarantee, fails with the same place noted.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from gapless.content.condition import EVERYTHING, Condition
from gapless.errors import GaplessError
from gapless.model.ids import BrokerId, PubendId, SubscriptionId, TopicId
from gapless.protocol.events import FilterChangeRequested, Order, SubscribeRequested
from gapless.protocol.network import Network
from gapless.protocol.trace import story
from tests.conditions import where
from tests.scenarios.files import Command, parse
from tests.scenarios.host import Host, Way
from tests.scenarios.ledger import Account, Row

#: Every topic of a scenario has this one column.
COLUMN = "price"

OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def run(path: Path) -> list[list[str]]:
    """The output of every block of a scenario file."""
    runner = Runner()
    outputs: list[list[str]] = []
    for block in parse(path):
        for command in block.commands:
            try:
                runner.execute(command)
            except (AssertionError, LookupError, TypeError, ValueError, NotImplementedError) as error:
                error.add_note(f"{command.place}: {' '.join(command.words)}")
                raise
        outputs.append(runner.output())
    return outputs


@dataclass(slots=True)
class Runner:
    """One scenario under way."""

    #: What `topology` and `parameters` have said; the brokers start at the first other command.
    description: dict[str, object] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)
    _host: Host | None = None

    def execute(self, command: Command) -> None:
        """Carry out one command line."""
        name, *words = command.words
        handler = COMMANDS.get(name)
        if handler is None:
            raise command.wrong(f"there is no command '{name}': use one of {', '.join(sorted(COMMANDS))}")
        handler(self, command, words)
        if self._host is not None:
            self._host.settle()

    def output(self) -> list[str]:
        """The lines printed since the last call."""
        if self._host is None:
            return []
        lines, self._host.lines = self._host.lines, []
        return lines

    def host(self, command: Command) -> Host:
        """The host, started if this is the first command that needs it."""
        if self._host is None:
            if "cells" not in self.description:
                raise command.wrong("there are no brokers yet: begin with a 'topology' line")
            try:
                network = Network.parse(self.description)
            except GaplessError as error:
                raise command.wrong(f"the topology is not possible: {error}") from error
            self._host = Host(network)
            for broker in network.cell_of:
                self._host.set_clock(broker, self.clocks.get(broker, self.clocks.get("", 0)))
            self._host.start()
        return self._host

    # ---- names in a command --------------------------------------------------------------------------

    def broker(self, command: Command, name: str, *, alive: bool | None = True) -> BrokerId:
        """The broker of that name, which must be running, or must not, or either."""
        host = self.host(command)
        broker = BrokerId(name)
        if broker not in host.network.cell_of:
            raise command.wrong(f"there is no broker '{name}'")
        if alive is not None and (broker in host.brokers) is not alive:
            raise command.wrong(f"broker '{name}' is {'not running' if alive else 'running'}")
        return broker

    def pubend(self, command: Command, name: str) -> PubendId:
        """The pubend of that name."""
        pubends = self.host(command).network.pubends
        if PubendId(name) not in pubends:
            raise command.wrong(f"there is no pubend '{name}': there are {', '.join(sorted(pubends))}")
        return PubendId(name)

    def subscription(self, command: Command, name: str) -> SubscriptionId:
        """The subscription of that name."""
        if SubscriptionId(name) not in self.host(command).subscribers:
            raise command.wrong(f"'{name}' is not subscribed")
        return SubscriptionId(name)

    def pair(self, command: Command, one: str, other: str) -> Way:
        """Two brokers that have a connection."""
        way = (self.broker(command, one, alive=None), self.broker(command, other, alive=None))
        if tuple(sorted(way)) not in self.host(command).network.connections():
            raise command.wrong(f"there is no connection between {one} and {other}")
        return way

    def way(self, command: Command, words: list[str]) -> tuple[Way, list[str]]:
        """The connection of `b1 -> s1`, and the words after it."""
        if len(words) < 3 or words[1] != "->":
            raise command.wrong("name a connection, such as 'b1 -> s1'")
        return self.pair(command, words[0], words[2]), words[3:]


# ---- before the brokers start ------------------------------------------------------------------------


def _topology(runner: Runner, command: Command, words: list[str]) -> None:
    if runner.description.get("cells"):
        raise command.wrong("the topology was given already")
    cells: dict[str, list[str]] = {}
    pubends: dict[str, dict[str, str]] = {}
    links: list[str] = []
    edges: list[str] | None = None
    for word in words:
        kind, _, value = word.partition("=")
        if kind == "cell":
            cell, _, brokers = value.partition(":")
            cells[cell] = brokers.split(",")
        elif kind == "pubend":
            matched = re.fullmatch(r"(\w+)@(\w+)(?::(\w+))?", value)
            if matched is None:
                raise command.wrong(
                    f"write a pubend as 'pubend=name@broker' or 'pubend=name@broker:topic': {word}"
                )
            pubends[matched[1]] = {"broker": matched[2], "topic": matched[3] or matched[1]}
        elif kind == "edges":
            edges = value.split(",")
        elif re.fullmatch(r"\w+--\w+", word):
            links.append(word)
        else:
            raise command.wrong(f"'{word}' is not a link 'a--b', 'cell=', 'pubend=' or 'edges='")
    ends = [end for link in links for end in link.split("--")] or [p["broker"] for p in pubends.values()]
    for end in ends:
        cells.setdefault(end, [end])
    if edges is None:
        hosts = {place["broker"] for place in pubends.values()}
        edges = [end for end in dict.fromkeys(ends) if ends.count(end) == 1 and end not in hosts]
    topics = {place["topic"]: {COLUMN: "int"} for place in pubends.values()}
    runner.description |= {
        "cells": cells,
        "links": links,
        "topics": topics,
        "pubends": pubends,
        "edges": edges,
    }


def _parameters(runner: Runner, command: Command, words: list[str]) -> None:
    if runner._host is not None:
        raise command.wrong("parameters must come before the first command that needs brokers")
    values: dict[str, object] = {}
    for word in words:
        name, _, value = word.partition("=")
        values[name] = "infinite" if value == "infinite" else _number(command, value)
    runner.description["parameters"] = values


def _clock(runner: Runner, command: Command, words: list[str]) -> None:
    *brokers, tick = words or [""]
    if runner._host is None:
        runner.clocks |= {broker: _number(command, tick) for broker in brokers or [""]}
        return
    for name in brokers or sorted(runner._host.network.cell_of):
        runner._host.set_clock(runner.broker(command, name, alive=None), _number(command, tick))


# ---- clients -----------------------------------------------------------------------------------------


def _publish(runner: Runner, command: Command, words: list[str]) -> None:
    pubend = runner.pubend(command, _one(command, words[:1]))
    runner.broker(command, runner.host(command).network.pubends[pubend].broker)
    prices: list[int] = []
    for word in words[1:]:
        matched = re.fullmatch(rf"{COLUMN}=(-?\d+)", word)
        if matched is None:
            raise command.wrong(f"write each event as '{COLUMN}=7', not '{word}'")
        prices.append(int(matched[1]))
    if not prices:
        raise command.wrong(f"name at least one event, such as '{COLUMN}=7'")
    rows = pa.RecordBatch.from_pydict({COLUMN: pa.array(prices, pa.int64())})
    runner.host(command).publish(pubend, rows)


def _subscribe(runner: Runner, command: Command, words: list[str]) -> None:
    text = " ".join(words)
    where = rf"(?: where {COLUMN} (=|<=?|>=?) (-?\d+))?"
    matched = re.fullmatch(rf"(\w+) (\w+) (\w+){where}( total)?(?: from (-?\d+))?", text)
    if matched is None:
        raise command.wrong("write 'subscribe edge name topic [where price > 5] [total] [from 10]'")
    edge, name, topic, op, number, total, since = matched.groups()
    host = runner.host(command)
    if SubscriptionId(name) in host.subscribers:
        raise command.wrong(f"'{name}' is subscribed already")
    if TopicId(topic) not in host.network.topics:
        raise command.wrong(f"there is no topic '{topic}'")
    request = SubscribeRequested(
        subscription=SubscriptionId(name),
        topic=TopicId(topic),
        condition=_condition(op, number),
        order=Order.TOTAL if total else Order.PUBLISHER,
        start=None if since is None else int(since),
    )
    host.subscribe(runner.broker(command, edge), request, Account(_judge(op, number), bool(total)))


def _change(runner: Runner, command: Command, words: list[str]) -> None:
    matched = re.fullmatch(rf"(\w+)(?: where {COLUMN} (=|<=?|>=?) (-?\d+))?", " ".join(words))
    if matched is None:
        raise command.wrong("write 'change name [where price > 5]'")
    name, op, number = matched.groups()
    request = FilterChangeRequested(
        subscription=runner.subscription(command, name), condition=_condition(op, number)
    )
    runner.host(command).change(request, _judge(op, number))


def _unsubscribe(runner: Runner, command: Command, words: list[str]) -> None:
    runner.host(command).unsubscribe(runner.subscription(command, _one(command, words)))


def _stall(runner: Runner, command: Command, words: list[str]) -> None:
    name = runner.subscription(command, _one(command, words))
    runner.host(command).subscribers[name].stalled = True


def _take(runner: Runner, command: Command, words: list[str]) -> None:
    runner.host(command).take(runner.subscription(command, _one(command, words)))


def _overflow(runner: Runner, command: Command, words: list[str]) -> None:
    name = runner.subscription(command, _one(command, words))
    if not runner.host(command).subscribers[name].stalled:
        raise command.wrong(f"'{name}' takes everything at once: 'stall {name}' first")
    runner.host(command).overflow(name)


# ---- the network -------------------------------------------------------------------------------------


def _hold(runner: Runner, command: Command, words: list[str]) -> None:
    way, rest = runner.way(command, words)
    runner.host(command).holds[way] = rest[0] if rest else None


def _release(runner: Runner, command: Command, words: list[str]) -> None:
    way, rest = runner.way(command, words)
    if way not in runner.host(command).holds:
        raise command.wrong("nothing is held there")
    runner.host(command).release(way, backwards=rest == ["backwards"])


def _lose(runner: Runner, command: Command, words: list[str]) -> None:
    way, rest = runner.way(command, words)
    times = _number(command, rest.pop()) if rest and rest[-1].isdigit() else 1
    runner.host(command).losses.setdefault(way, []).extend([rest[0] if rest else None] * times)


def _repeat(runner: Runner, command: Command, words: list[str]) -> None:
    way, rest = runner.way(command, words)
    runner.host(command).repeats.setdefault(way, []).append(rest[0] if rest else None)


def _cut(runner: Runner, command: Command, words: list[str]) -> None:
    one, other, silently = _silently(command, words, 2)
    runner.host(command).cut_link(*runner.pair(command, one, other), silently=bool(silently))


def _heal(runner: Runner, command: Command, words: list[str]) -> None:
    if len(words) != 2:
        raise command.wrong("name two brokers")
    runner.host(command).heal_link(*runner.pair(command, words[0], words[1]))


# ---- brokers, disks and time -------------------------------------------------------------------------


def _crash(runner: Runner, command: Command, words: list[str]) -> None:
    name, silently = _silently(command, words, 1)
    runner.host(command).crash(runner.broker(command, name), silently=bool(silently))


def _restart(runner: Runner, command: Command, words: list[str]) -> None:
    runner.host(command).restart(runner.broker(command, _one(command, words), alive=False))


def _disk(runner: Runner, command: Command, words: list[str]) -> None:
    if len(words) != 2 or words[1] not in ("works", "waits", "fails"):
        raise command.wrong("write 'disk p works', 'disk p waits' or 'disk p fails'")
    host, broker = runner.host(command), runner.broker(command, words[0])
    host.disk_waits.discard(broker)
    host.disk_fails.discard(broker)
    if words[1] == "waits":
        host.disk_waits.add(broker)
    elif words[1] == "fails":
        host.disk_fails.add(broker)
    else:
        host.flush(broker)


def _flush(runner: Runner, command: Command, words: list[str]) -> None:
    runner.host(command).flush(runner.broker(command, _one(command, words)))


def _wait(runner: Runner, command: Command, words: list[str]) -> None:
    matched = re.fullmatch(r"(\d+)(ms|s)", "".join(words))
    if matched is None:
        raise command.wrong("write a duration, such as '200ms' or '2s'")
    runner.host(command).wait(int(matched[1]) * (1_000 if matched[2] == "s" else 1))


# ---- looking -----------------------------------------------------------------------------------------


def _show(runner: Runner, command: Command, words: list[str]) -> None:
    runner.host(command).hidden.difference_update(words)


def _hide(runner: Runner, command: Command, words: list[str]) -> None:
    runner.host(command).hidden.update(words)


def _story(runner: Runner, command: Command, words: list[str]) -> None:
    if len(words) != 2:
        raise command.wrong("name a pubend and a tick")
    host = runner.host(command)
    told = story(host.history, runner.pubend(command, words[0]), _number(command, words[1]))
    for line in told.splitlines() or ["nothing"]:
        host.say(line)


def _memory(runner: Runner, command: Command, words: list[str]) -> None:
    host, broker = runner.host(command), runner.broker(command, _one(command, words))
    host.say(f"{broker} holds {host.brokers[broker].memory().rows} events in memory")


def _log(runner: Runner, command: Command, words: list[str]) -> None:
    host, pubend = runner.host(command), runner.pubend(command, _one(command, words))
    held = host.logs[pubend].held()
    host.say(f"the log of {pubend} holds {' '.join(map(str, held)) or 'nothing'}")


def _owed(runner: Runner, command: Command, words: list[str]) -> None:
    host = runner.host(command)
    for name in words or sorted(host.subscribers):
        missing = host.ledger.missing(runner.subscription(command, name))
        host.say(f"{name} is owed {' '.join(f'{p} {t}' for p, t in missing) or 'nothing'}")


COMMANDS: dict[str, Callable[[Runner, Command, list[str]], None]] = {
    "topology": _topology,
    "parameters": _parameters,
    "clock": _clock,
    "publish": _publish,
    "subscribe": _subscribe,
    "change": _change,
    "unsubscribe": _unsubscribe,
    "stall": _stall,
    "take": _take,
    "overflow": _overflow,
    "hold": _hold,
    "release": _release,
    "lose": _lose,
    "repeat": _repeat,
    "cut": _cut,
    "heal": _heal,
    "crash": _crash,
    "restart": _restart,
    "disk": _disk,
    "flush": _flush,
    "wait": _wait,
    "show": _show,
    "hide": _hide,
    "story": _story,
    "memory": _memory,
    "log": _log,
    "owed": _owed,
}


# ---- words -------------------------------------------------------------------------------------------


def _one(command: Command, words: list[str]) -> str:
    if len(words) != 1:
        raise command.wrong("name exactly one")
    return words[0]


def _number(command: Command, word: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise command.wrong(f"'{word}' is not a whole number") from error


def _silently(command: Command, words: list[str], names: int) -> list[str]:
    """The names, and after them 'silently' or an empty word."""
    if len(words) == names:
        return [*words, ""]
    if len(words) != names + 1 or words[-1] != "silently":
        raise command.wrong(f"name {names}, and perhaps 'silently'")
    return words


def _condition(op: str | None, number: str | None) -> Condition:
    if op is None or number is None:
        return EVERYTHING
    return where(f"{COLUMN} {op} {int(number)}", **{COLUMN: "int"})


def _judge(op: str | None, number: str | None) -> Callable[[Row], bool]:
    if op is None or number is None:
        return lambda row: True
    return lambda row: OPERATORS[op](row[COLUMN], int(number))

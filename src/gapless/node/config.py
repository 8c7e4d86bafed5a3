"""What does a node need to know before it starts? One TOML file for the whole network, and its own name.

The file is the description that `protocol.network` checks (cells, links, topics, pubends, edges,
parameters) and what real nodes need beside it: addresses, certificates, tokens, retention, limits.
docs/network.md describes every key. Everything is checked before anything starts; an unknown key is
a mistake.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gapless.errors import GaplessError, NetworkDescriptionError
from gapless.model.budget import DOCUMENT_BYTES_MAX, NODES_MAX
from gapless.model.ids import BrokerId, TopicId
from gapless.model.schema import Schema
from gapless.node.secret import read_secret
from gapless.node.security import ClientCertificates, Rights, Tls, Tokens
from gapless.protocol.network import Network
from gapless.protocol.sessions.identities import PUBLISHER_DAYS_MIN, PUBLISHERS_MAX
from gapless.store.log import LogOptions
from gapless.store.retention import Keep, Retention
from gapless.views.limits import ROWS_MAX, STATES, State
from gapless.views.registry import KIND
from gapless.wire.address import DEFAULT_PORT, Address
from gapless.wire.proof import NetworkSecret

#: The sections that describe the network itself, and those that say how its nodes are run.
NETWORK_SECTIONS = ("cells", "links", "topics", "pubends", "edges", "repositories", "parameters")
NODE_SECTIONS = (
    "addresses",
    "client_addresses",
    "http",
    "bulk",
    "tls",
    "secret",
    "tokens",
    "retention",
    "archive",
    "limits",
    "spark",
)

#: The only broker of a network without a description.
SOLE_BROKER = BrokerId("node")
#: Its default retention: a newcomer wants to see earlier events.
SOLE_RETENTION = "7d"

#: No limit that counts things may be set higher.
LIMIT_MAX = 1_000_000
#: What is beyond the limits of documents themselves would match nothing.
_LANGUAGE_LIMITS = {"document_bytes_max": DOCUMENT_BYTES_MAX, "document_parts_max": NODES_MAX}

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """What a network file says of the pipeline: section `[spark]`."""

    #: The broker whose node starts it.
    broker: str
    master: str = "local[*]"
    #: Where it keeps its checkpoints; by default in the folder of the node.
    checkpoints: Path | None = None
    #: Where Spark keeps groups.
    state: State = "auto"
    #: Maximum number of rows that a view may show, and a stage keep.
    rows_max: int = ROWS_MAX
    #: Its token.
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a node, and what it leaves free. Every field is a key of `[limits]`.

    A field whose name has `bytes` in it is a size, the others count things.
    """

    #: Maximum number of connected clients.
    clients_max: int = 20_000
    #: Maximum number of publisher identities that are remembered for each principal.
    principal_publishers_max: int = PUBLISHERS_MAX
    #: Minimum number of days after its last event for which an identity that a program chose is remembered.
    publisher_days_min: int = PUBLISHER_DAYS_MIN
    #: Maximum number of connections of one principal.
    principal_clients_max: int = 18_000
    #: Maximum number of subscriptions of one connection, and of one principal, parked ones included.
    client_subscriptions_max: int = 10_000
    principal_subscriptions_max: int = 20_000
    #: Maximum number of named subscriptions of one principal.
    principal_names_max: int = 10_000
    #: Maximum number of characters in the conditions of one principal's subscriptions, together.
    principal_condition_bytes_max: int = 8 * 10**6
    #: Maximum cost per event of one principal's conditions: about microseconds, for a large event.
    principal_matching_cost_max: int = 5_000
    #: Maximum number of bytes that wait to be read by the clients of one principal, together.
    principal_backlog_bytes_max: int = 256 * 10**6
    #: Maximum number of topics that one principal has created at a node.
    principal_topics_max: int = 500
    #: Maximum number of bytes of a document in a column of type xml, and of the signs `<` and `=` in it,
    #: those of a `</` not counted.
    document_bytes_max: int = 2**20
    document_parts_max: int = 5_000
    #: Publishing is refused while the disk has less free space than this.
    free_bytes_min: int = LogOptions().free_bytes_min


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What one node is and where it keeps its data."""

    network: Network
    broker: BrokerId
    addresses: Mapping[BrokerId, Address]
    #: None keeps everything in memory: nothing survives a restart.
    folder: Path | None
    #: The version of the program, for people.
    software: str = ""
    #: Where metrics and status are served over HTTP; None for nowhere.
    http: Address | None = None
    tls: Tls | None = None
    #: What brokers prove to each other that they know; None when they need not.
    secret: NetworkSecret | None = None
    #: None admits every client.
    tokens: Tokens | None = None
    #: How long the events of a topic are kept, and those of all others: until everybody has them.
    retention: Mapping[TopicId, Retention] = field(default_factory=dict)
    retention_else: Retention = field(default_factory=Retention)
    #: The topics whose events are kept as Parquet files for other programs.
    archive: frozenset[TopicId] = frozenset()
    limits: Limits = field(default_factory=Limits)
    #: Where clients reach brokers, where that is not where they listen: behind a proxy, for instance.
    client_addresses: Mapping[BrokerId, Address] = field(default_factory=dict)
    #: Where events are read in bulk; a broker that is not named opens any port when it is asked to.
    bulk: Mapping[BrokerId, Address] = field(default_factory=dict)

    #: Who computes the views; None when no node starts that program.
    spark: Spark | None = None
    #: What the operator knows to be lost: pubends whose log is, and `node.sqlite` for the database.
    accept_loss: frozenset[str] = frozenset()
    #: The number of the node's life is at least this, whatever its folder and its clock say.
    incarnation_min: int = 0
    #: Where logs ended of which the life before told nothing, by pubend; see `Recovered`.
    untold: Mapping[str, int] = field(default_factory=dict)

    def client_address(self, broker: BrokerId) -> Address:
        """Where clients reach a broker."""
        return self.client_addresses.get(broker, self.addresses[broker])

    @property
    def listen(self) -> Address:
        """Where this node listens."""
        return self.addresses[self.broker]


def sole_network(topics: Mapping[str, Mapping[str, str]]) -> Network:
    """A network of one broker, in all roles, with these topics. Raises as `Network.parse` does."""
    return Network.parse(
        {
            "cells": {"all": [SOLE_BROKER]},
            "edges": [SOLE_BROKER],
            "topics": topics,
            "pubends": {name: {"topic": name, "broker": SOLE_BROKER} for name in topics},
        }
    )


@dataclass(frozen=True, slots=True)
class NetworkFile:
    """All that a network description says."""

    network: Network
    addresses: dict[BrokerId, Address]
    client_addresses: dict[BrokerId, Address]
    http: dict[BrokerId, Address]
    bulk: dict[BrokerId, Address]
    #: With `{broker}` in the paths.
    tls: Tls | None
    secret: NetworkSecret | None
    tokens: Tokens | None
    retention: dict[TopicId, Retention]
    archive: frozenset[TopicId]
    limits: Limits
    spark: Spark | None = None

    def node(self, broker: BrokerId, folder: Path | None, software: str) -> NodeConfig:
        """What one broker of the network needs."""
        return NodeConfig(
            network=self.network,
            broker=broker,
            addresses=self.addresses,
            folder=folder,
            software=software,
            http=self.http.get(broker),
            tls=None if self.tls is None else _of_broker(self.tls, broker),
            secret=self.secret,
            tokens=self.tokens,
            retention=self.retention,
            archive=self.archive,
            limits=self.limits,
            client_addresses=self.client_addresses,
            spark=self.spark,
            bulk=self.bulk,
        )


def load_network(text: str, name: str, folder: Path | None = None) -> NetworkFile:
    """All that the text of a TOML file called `name` says. Paths in it begin at `folder`.

    Raises NetworkDescriptionError, or SchemaError or ParameterError for those parts, naming the place.
    """
    description = _toml(text, name)
    try:
        return _parsed(description, folder or Path())
    except GaplessError as error:
        raise type(error)(error.code, f"{name}: {error.message}") from error


def _toml(text: str, name: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise NetworkDescriptionError("E130", f"{name}: not TOML: {error}") from error


def _parsed(description: dict[str, object], folder: Path) -> NetworkFile:
    _known_keys(description, (*NETWORK_SECTIONS, *NODE_SECTIONS), "section")
    network = Network.parse({key: description[key] for key in NETWORK_SECTIONS if key in description})
    tls = None if "tls" not in description else _tls(_table(description["tls"], "tls"), folder)
    secret = None if "secret" not in description else _secret(description["secret"], folder)
    tokens = None if "tokens" not in description else _tokens(description["tokens"], folder)
    check_links(network, tls, secret, tokens)
    return NetworkFile(
        network=network,
        addresses=_all_addresses(description.get("addresses", {}), network),
        client_addresses=_addresses(
            description.get("client_addresses", {}), "client_addresses", network, port=DEFAULT_PORT
        ),
        http=_addresses(description.get("http", {}), "http", network, port=None),
        bulk=_addresses(description.get("bulk", {}), "bulk", network, port=None),
        tls=tls,
        secret=secret,
        tokens=tokens,
        retention={
            topic: fitting_retention(each, network.topics[topic], f"retention.{topic}")
            for topic, each in _by_topic(
                description.get("retention", {}), "retention", network, parse_retention
            ).items()
        },
        archive=frozenset(
            topic
            for topic, wanted in _by_topic(
                description.get("archive", {}), "archive", network, _boolean
            ).items()
            if wanted
        ),
        limits=_limits(_table(description.get("limits", {}), "limits")),
        spark=None if "spark" not in description else _spark(description["spark"], network, folder),
    )


# ---- addresses ---------------------------------------------------------------------------------------


def _all_addresses(value: object, network: Network) -> dict[BrokerId, Address]:
    addresses = _addresses(value, "addresses", network, port=DEFAULT_PORT)
    missing = sorted(set(network.cell_of) - set(addresses))
    if missing and len(network.cell_of) > 1:
        raise _wrong("addresses", f"none is given for {', '.join(missing)}")
    for name in missing:
        addresses[name] = Address("127.0.0.1", DEFAULT_PORT)
    return addresses


def _addresses(value: object, place: str, network: Network, *, port: int | None) -> dict[BrokerId, Address]:
    if not isinstance(value, Mapping):
        raise _wrong(place, "must be a table of broker = 'host:port'")
    addresses: dict[BrokerId, Address] = {}
    for name, text in value.items():
        if name not in network.cell_of:
            hint = _suggestion(name, network.cell_of)
            raise _wrong(f"{place}.{name}", f"there is no such broker in the cells{hint}")
        if not isinstance(text, str):
            raise _wrong(f"{place}.{name}", "must be a text such as 'host:7400'")
        addresses[BrokerId(name)] = Address.parse(text, f"{place}.{name}", port=port)
    return addresses


# ---- security ----------------------------------------------------------------------------------------


def _tls(table: Mapping[str, object], folder: Path) -> Tls:
    _known_keys(table, ("certificate", "key", "authority", "clients"), "key", "tls.")
    paths: dict[str, Path] = {}
    for name in ("certificate", "key", "authority"):
        if name not in table:
            raise _wrong(f"tls.{name}", "is missing: TLS needs a certificate, its key and the authority")
        paths[name] = folder / _text(table[name], f"tls.{name}")
    allowed = [each.value for each in ClientCertificates]
    clients = table.get("clients", "none")
    if clients not in allowed:
        raise _wrong("tls.clients", f"must be {_either(allowed)}, got {clients!r}")
    return Tls(**paths, clients=ClientCertificates(clients))


def _of_broker(tls: Tls, broker: BrokerId) -> Tls:
    def own(path: Path) -> Path:
        return Path(str(path).replace("{broker}", broker))

    return Tls(
        certificate=own(tls.certificate), key=own(tls.key), authority=own(tls.authority), clients=tls.clients
    )


def _secret(value: object, folder: Path) -> NetworkSecret:
    table = _table(value, "secret")
    _known_keys(table, ("file",), "key", "secret.")
    if "file" not in table:
        raise _wrong("secret.file", "is missing: make one with `gapless token --network-secret FILE`")
    return read_secret(folder / _text(table["file"], "secret.file"))


def check_links(
    network: Network, tls: Tls | None, secret: NetworkSecret | None, tokens: Tokens | None
) -> None:
    """Raise NetworkDescriptionError when tokens are asked for and anybody may say that it is a broker."""
    if tokens is not None and tls is None and secret is None and network.connections():
        raise NetworkDescriptionError(
            "E123",
            "tokens: clients need one but brokers prove nothing, so a client could pose as a broker: add "
            "[tls], or a [secret] made with `gapless token --network-secret FILE`",
        )


def _tokens(value: object, folder: Path) -> Tokens:
    """Tokens from a table, or from the file that a text names."""
    if isinstance(value, str):
        path = folder / value
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text"
            raise NetworkDescriptionError("E133", f"tokens: {path} cannot be read: {reason}") from error
        value = _toml(text, path.name)
    found: dict[str, Rights] = {}
    for name, entry in _table(value, "tokens").items():
        digest, rights = _token(name, entry)
        if digest in found:
            raise _bad_token(name, f"has the same token as '{found[digest].name}': make one for each")
        found[digest] = rights
    return Tokens.of(found)


def _token(name: str, entry: object) -> tuple[str, Rights]:
    if not isinstance(entry, Mapping):
        raise _bad_token(name, "must be a table: make it with `gapless token`")
    _known_keys(entry, ("sha256", "publish", "subscribe", "admin", "adopt"), "key", f"tokens.{name}.")
    digest = entry.get("sha256")
    if not isinstance(digest, str) or re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise _bad_token(name, "sha256 must be 64 hexadecimal digits: make it with `gapless token`")
    patterns: dict[str, tuple[str, ...]] = {}
    for right in ("publish", "subscribe", "adopt"):
        names = entry.get(right, [])
        if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
            raise _bad_token(
                name, f"{right} must be a list of names or patterns, such as ['trades', 'news.*']"
            )
        patterns[right] = tuple(names)
    admin = entry.get("admin", False)
    if not isinstance(admin, bool):
        raise _bad_token(name, "admin must be true or false")
    return digest, Rights(
        name=name,
        publish=patterns["publish"],
        subscribe=patterns["subscribe"],
        admin=admin,
        adopt=patterns["adopt"],
        sha256=digest,
    )


def _bad_token(name: str, text: str) -> NetworkDescriptionError:
    return NetworkDescriptionError("E133", f"tokens.{name}: {text}")


# ---- retention and limits ----------------------------------------------------------------------------

_SIZES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_KEYED = re.compile(r"(newest|relation)\((\s*\w+\s*(?:,\s*\w+\s*)*)\)")
_TIMES_MS = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_retention(value: object, place: str = "retention") -> Retention:
    """How long events are kept, as people write it.

    >>> parse_retention("7d").keep_ms, parse_retention("10GB").keep_bytes
    (604800000, 10000000000)
    >>> parse_retention("newest(user, item)").columns
    ('user', 'item')

    Raises NetworkDescriptionError naming the place.
    """
    text = value if isinstance(value, str) else ""
    if text in (Keep.ACKNOWLEDGED.value, Keep.FOREVER.value):
        return Retention(keep=Keep(text))
    keyed = _KEYED.fullmatch(text)
    if keyed is not None:
        return _keyed(Keep(keyed[1]), keyed[2], place)
    number, unit = _quantity(text)
    if unit in _TIMES_MS and number * _TIMES_MS[unit] >= 1:
        return Retention(keep=Keep.TIME, keep_ms=int(number * _TIMES_MS[unit]))
    if unit in _SIZES and number * _SIZES[unit] >= 1:
        return Retention(keep=Keep.SIZE, keep_bytes=int(number * _SIZES[unit]))
    raise _wrong(
        place,
        "must be 'acknowledged', 'forever', a time such as '7d', a size such as '10GB', "
        f"or 'newest(column)', got {value!r:.80}",
    )


def _keyed(keep: Keep, text: str, place: str) -> Retention:
    columns = tuple(each.strip() for each in text.split(","))
    if len(set(columns)) < len(columns) or (keep is Keep.RELATION and len(columns) > 1):
        few = "one column" if keep is Keep.RELATION else "different columns"
        raise _wrong(place, f"{keep.value}(...) names {few}, got '{text}'")
    return Retention(keep=keep, columns=columns)


def fitting_retention(retention: Retention, schema: Schema, place: str) -> Retention:
    """The retention, if the topic has the columns that it names. Raises NetworkDescriptionError."""
    names = [column.name for column in schema.columns]
    for column in retention.columns:
        if column not in names:
            raise _wrong(
                place, f"topic '{schema.topic}' has no column '{column}'{_suggestion(column, names)}"
            )
    if retention.keep is Keep.RELATION:
        of_kind = next((column for column in schema.columns if column.name == KIND), None)
        if of_kind is None or of_kind.type != "int":
            raise _wrong(
                place,
                f"a relation has a column '{KIND}' of type int: for other topics, there is 'newest(...)'",
            )
    return retention


def _quantity(text: str) -> tuple[float, str]:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]+)", text)
    return (float(match[1]), match[2]) if match else (0.0, "")


def _limits(table: Mapping[str, object]) -> Limits:
    _known_keys(table, Limits.__dataclass_fields__, "key", "limits.")
    return Limits(**{name: _limit(value, name) for name, value in table.items()})


def _limit(value: object, name: str) -> int:
    """One limit: a size such as '64MB' where its name counts bytes, a whole number elsewhere."""
    place = f"limits.{name}"
    most = _LANGUAGE_LIMITS.get(name, LIMIT_MAX)
    if "bytes" in name:
        size = _size(value, place)
        if name in _LANGUAGE_LIMITS and not 1 <= size <= most:
            raise _wrong(place, f"must be a size from 1 to {most} bytes, got {value!r}")
        return size
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise _wrong(place, f"must be a whole number from 1 to {most}, got {value!r}")
    return value


def _spark(value: object, network: Network, folder: Path) -> Spark:
    """Which broker's node starts the program that computes the views, and how."""
    table = _table(value, "spark")
    _known_keys(table, ("broker", "master", "checkpoints", "state", "rows_max", "token"), "key", "spark.")
    if "broker" not in table:
        raise _wrong("spark.broker", "is missing: name the broker whose node starts Spark")
    rows_max = table.get("rows_max", ROWS_MAX)
    if not isinstance(rows_max, int) or isinstance(rows_max, bool) or rows_max < 1:
        raise _wrong("spark.rows_max", f"must be a whole number from 1, got {rows_max!r}")
    texts = {key: _text(value, f"spark.{key}") for key, value in table.items() if key != "rows_max"}
    broker = texts["broker"]
    if broker not in network.cell_of:
        hint = _suggestion(broker, network.cell_of)
        raise _wrong("spark.broker", f"there is no broker '{broker}' in the cells{hint}")
    if broker not in network.edges:
        raise _wrong("spark.broker", f"broker '{broker}' takes no subscribers: name one of the edges")
    checkpoints, wish = texts.get("checkpoints"), texts.get("state", "auto")
    state = next((each for each in STATES if each == wish), None)
    if state is None:
        raise _wrong("spark.state", f"must be one of {', '.join(STATES)}, got '{wish}'")
    return Spark(
        broker=broker,
        master=texts.get("master", Spark(broker=broker).master),
        checkpoints=None if checkpoints is None else folder / checkpoints,
        state=state,
        rows_max=rows_max,
        token=texts.get("token"),
    )


def _size(value: object, place: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    number, unit = _quantity(value) if isinstance(value, str) else (0.0, "")
    if unit not in _SIZES:
        raise _wrong(place, f"must be a size such as '64MB', got {value!r}")
    return int(number * _SIZES[unit])


def _by_topic(
    table: object, place: str, network: Network, parse: Callable[[object, str], Found]
) -> dict[TopicId, Found]:
    found: dict[TopicId, Found] = {}
    for name, value in _table(table, place).items():
        if name not in network.topics:
            raise _wrong(f"{place}.{name}", f"there is no such topic{_suggestion(name, network.topics)}")
        found[TopicId(name)] = parse(value, f"{place}.{name}")
    return found


# ---- what all parts share ----------------------------------------------------------------------------


def _wrong(place: str, text: str) -> NetworkDescriptionError:
    return NetworkDescriptionError("E131", f"{place}: {text}")


def _table(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _wrong(place, f"must be a table, got {value!r:.80}")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(place, f"must be a text, got {value!r:.80}")
    return value


def _boolean(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(place, f"must be true or false, got {value!r:.80}")
    return value


def _known_keys(table: Mapping[str, object], known: Iterable[str], what: str, prefix: str = "") -> None:
    for key in table:
        if key not in known:
            raise _wrong(f"{prefix}{key}", f"unknown {what}{_suggestion(key, known) or _listing(known)}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean '{close[0]}'?" if close else ""


def _listing(known: Iterable[str]) -> str:
    return f": there are {', '.join(known)}"


def _either(names: Iterable[str]) -> str:
    return " or ".join(f"'{name}'" for name in names)

"""How does a connection begin, and is the other side still there?

The dialler sends Hello and waits. The answer is Welcome, which names the version that both speak, or Refuse,
which says why not. Refuse may also come later: it is always the last frame of its sender. The frames of the
handshake never change, so that even programs that are years apart can tell each other why they cannot talk.

Where brokers share a secret, two frames come between Hello and Welcome: the acceptor sends a Challenge and
the dialler a Proof. `gapless.wire.proof` says what is in them.

Implements docs/wire.md, section 3.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final, TypeAlias, assert_never

import msgspec
from msgspec import Meta

from gapless.errors import PeerError
from gapless.model.bounds import Counter, ErrorCode, Name, Text
from gapless.protocol.network import Network
from gapless.wire.codec import column_texts, decode_head, shortened, unreadable
from gapless.wire.frames import VERSION_MAX, VERSION_MIN, Frame, Kind, Part, encode_frame, versions_text

#: Size of a nonce and of a proof, in bytes.
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32

_Version = Annotated[int, Meta(ge=1, le=255)]
_Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Proven = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class Role(Enum):
    """The role of the dialler."""

    BROKER = "broker"
    CLIENT = "client"


class HandshakeMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that travels as a map, so that a program of any version finds the fields that it knows."""


class Hello(HandshakeMessage, frozen=True, kw_only=True):
    """The first frame of the dialler."""

    role: Role
    #: The id of the broker, or a client's name, for people.
    name: Name
    #: Of `network_fingerprint`; empty from a client, which need not know the network.
    network: Text = ""
    #: The version of the program, for people.
    software: Text = ""
    token: Text | None = None
    #: From a broker that has the network's secret: bytes that it has never sent before; otherwise empty.
    nonce: _Nonce = b""
    version_min: _Version = VERSION_MIN
    version_max: _Version = VERSION_MAX


class Welcome(HandshakeMessage, frozen=True, kw_only=True):
    """The answer to a Hello: from now on both sides speak `version`."""

    version: _Version
    #: The broker that answers.
    name: Name
    #: Of `network_fingerprint` to a broker; empty to a client.
    network: Text
    software: Text = ""


class Refuse(HandshakeMessage, frozen=True, kw_only=True):
    """The last frame of its sender: why it closes the connection."""

    code: ErrorCode
    message: Text
    #: Whether a later retry may help.
    retry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Are you there? Answered by a Pong with the same number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The answer to a Ping."""

    number: int


class Challenge(HandshakeMessage, frozen=True, kw_only=True):
    """The answer to a broker's Hello where brokers share a secret: prove that you know it, as I do."""

    #: The broker that answers.
    name: Name
    #: Bytes that it has never sent before.
    nonce: _Nonce
    #: Proves that it knows the secret.
    proof: _Proven


class Proof(HandshakeMessage, frozen=True, kw_only=True):
    """The answer to a Challenge."""

    proof: _Proven


LinkMessage: TypeAlias = Hello | Welcome | Refuse | Ping | Pong | Challenge | Proof

_DECODERS: Final[dict[Kind, msgspec.msgpack.Decoder[Welcome | Refuse | Challenge | Proof]]] = {
    Kind.WELCOME: msgspec.msgpack.Decoder(Welcome),
    Kind.REFUSE: msgspec.msgpack.Decoder(Refuse),
    Kind.CHALLENGE: msgspec.msgpack.Decoder(Challenge),
    Kind.PROOF: msgspec.msgpack.Decoder(Proof),
}
_hello = msgspec.msgpack.Decoder(Hello)
_number = msgspec.msgpack.Decoder(Counter)
_encode = msgspec.msgpack.Encoder().encode

#: The frames that `decode_link` reads.
LINK_KINDS = frozenset(
    {Kind.HELLO, Kind.WELCOME, Kind.REFUSE, Kind.PING, Kind.PONG, Kind.CHALLENGE, Kind.PROOF}
)


def encode_link(message: LinkMessage) -> list[Part]:
    """A message of the handshake, a ping or a pong, as a frame."""
    match message:
        case Hello(nonce=nonce):
            # Without a secret the frame is that of earlier versions.
            said = msgspec.to_builtins(message, builtin_types=(bytes,))
            return encode_frame(Kind.HELLO, _encode(said if nonce else _without(said, "nonce")))
        case Challenge():
            kind = Kind.CHALLENGE
        case Proof():
            kind = Kind.PROOF
        case Welcome():
            kind = Kind.WELCOME
        case Refuse(message=text):
            kind, message = Kind.REFUSE, msgspec.structs.replace(message, message=shortened(text))
        case Ping(number=number):
            return encode_frame(Kind.PING, _encode(number))
        case Pong(number=number):
            return encode_frame(Kind.PONG, _encode(number))
        case _:
            assert_never(message)
    return encode_frame(kind, _encode(message))


def _without(said: dict[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in said.items() if key != name}


def decode_link(frame: Frame) -> LinkMessage:
    """What is in a frame of `LINK_KINDS`. Raises PeerError."""
    match frame.kind:
        case Kind.HELLO:
            hello = decode_head(_hello, frame)
            if hello.version_min > hello.version_max:
                raise unreadable(frame, "it speaks no version at all")
            return hello
        case Kind.PING:
            return Ping(number=decode_head(_number, frame))
        case Kind.PONG:
            return Pong(number=decode_head(_number, frame))
    if frame.kind not in _DECODERS:
        raise PeerError("E213", f"a {frame.kind.name} frame where the handshake was expected")
    return decode_head(_DECODERS[frame.kind], frame)


def check_hello(hello: Hello, network: str) -> int:
    """The version to speak with this peer. `network` is our own fingerprint.

    Raises PeerError: answer it with a Refuse of its code and message, and close.
    """
    version = min(hello.version_max, VERSION_MAX)
    if version < max(hello.version_min, VERSION_MIN):
        raise PeerError(
            "E211",
            f"'{hello.name}' speaks protocol version {versions_text(hello.version_min, hello.version_max)}, "
            f"this broker {versions_text(VERSION_MIN, VERSION_MAX)}: upgrade the older of the two",
        )
    if hello.role is Role.BROKER and hello.network != network:
        raise PeerError(
            "E217",
            f"'{hello.name}' has another network description: give all brokers the same file and restart",
        )
    return version


def check_welcome(welcome: Welcome, network: str = "") -> None:
    """Raise PeerError unless this answers our Hello. A client passes no fingerprint."""
    if not VERSION_MIN <= welcome.version <= VERSION_MAX:
        raise PeerError("E211", f"'{welcome.name}' chose protocol version {welcome.version}, not offered")
    if network and welcome.network != network:
        raise PeerError("E217", f"'{welcome.name}' has another network description")


def network_fingerprint(network: Network) -> str:
    """What two brokers must agree on before they talk: cells, links, topics, pubends and edges.

    Topics created since are not part of it: brokers tell each other. Parameters may differ for a while, so
    that they can be changed one broker at a time.
    """
    network = network.described or network
    said = [
        sorted((cell, list(brokers)) for cell, brokers in network.cells.items()),
        sorted(sorted(link) for link in network.links),
        sorted((topic, list(column_texts(schema).items())) for topic, schema in network.topics.items()),
        sorted((place.pubend, place.topic, place.broker) for place in network.pubends.values()),
        sorted(network.edges),
    ]
    return hashlib.sha256(_encode(said)).hexdigest()[:32]

"""Who may come in, and what may they do there? Certificates for brokers, tokens for clients.

Brokers of a network with TLS know each other by their certificates: one that the authority of the network
made, with the name of the broker in it. Clients may have to show a certificate too, and may have to show a
*token*: a secret text that stands for rights. The network knows only the SHA-256 of a token, so its
description may be read by anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gapless.errors import NetworkDescriptionError, PeerError, UsageError, no_topic
from gapless.model.ids import BrokerId, TopicId
from gapless.protocol.sessions.identities import ANONYMOUS

#: A token is looked up by this many characters of its hash; then all are compared.
_PREFIX_CHARACTERS = 16
TOKEN_PREFIX = "gapless_"  # noqa: S105  # what tokens begin with, so that people and scanners know one

#: Maximum number of remembered answers about topics. Clients may ask for topics that do not exist, under as
#: many names as they like: when there is no room, all answers are forgotten, and found again when needed.
KNOWN_MAX = 4_096

#: Whose the names are that were made before names had owners.
NOBODY = "nobody"


# ---- tokens ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The rights of a client. Patterns are those of a shell: `trades`, `trades.*`, `*`."""

    #: The name of its token; None where no tokens are asked for.
    name: str | None = None
    #: The subject of the certificate that it showed; None when it showed none.
    certificate: str | None = None
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False
    #: Names of subscriptions that it may adopt when their owner cannot come any more.
    adopt: tuple[str, ...] = ()
    #: The hash of its token.
    sha256: str = field(default="", repr=False)
    #: Topics that were looked up before, with what was found.
    _known: dict[tuple[str, TopicId], bool] = field(default_factory=dict, compare=False, repr=False)

    @property
    def principal(self) -> str:
        """Who it is, for ownership and quotas.

        Names and publisher identities belong to the principal that made them. Clients that show neither a
        token nor a certificate are all the same principal.
        """
        if self.name is not None:
            return f"token {self.name}"
        return ANONYMOUS if self.certificate is None else f"certificate {self.certificate}"

    def may_publish(self, topic: TopicId) -> bool:
        """Whether it may publish to a topic."""
        return self._may("publish", self.publish, topic)

    def may_subscribe(self, topic: TopicId) -> bool:
        """Whether it may subscribe to a topic."""
        return self._may("subscribe", self.subscribe, topic)

    def may_see(self, topic: TopicId) -> bool:
        """Whether it may know that there is such a topic."""
        return self.admin or self.may_publish(topic) or self.may_subscribe(topic)

    def may_adopt(self, name: str) -> bool:
        """Whether it may have a named subscription whose owner cannot come any more."""
        return self.admin or any(fnmatchcase(name, pattern) for pattern in self.adopt)

    def check_publish(self, topic: TopicId) -> None:
        """Raise UsageError unless it may publish to a topic."""
        if not self.may_publish(topic):
            raise self._refused(f"publish to '{topic}'", "publish")

    def check_subscribe(self, topic: TopicId) -> None:
        """Raise UsageError unless it may subscribe to a topic."""
        if not self.may_subscribe(topic):
            raise self._refused(f"subscribe to '{topic}'", "subscribe")

    def check_admin(self, what: str) -> None:
        """Raise UsageError unless it may administer the node."""
        if not self.admin:
            raise self._refused(what, "admin")

    def no_topic(self, topic: TopicId, topics: Iterable[TopicId]) -> UsageError:
        """There is no such topic among these; those that it may know of are named."""
        return no_topic(topic, (each for each in topics if self.may_see(each)))

    def _may(self, what: str, patterns: Iterable[str], topic: TopicId) -> bool:
        # A publisher asks this once per batch: the answer is looked up, and there are few topics.
        known = self._known.get((what, topic))
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[what, topic] = any(fnmatchcase(topic, pattern) for pattern in patterns)
        return known

    def _refused(self, what: str, right: str) -> UsageError:
        return UsageError(
            "E184", f"token '{self.name}' may not {what}: give it the right '{right}' in the tokens"
        )


#: Without tokens, every client has all rights.
EVERYTHING = Rights(publish=("*",), subscribe=("*",), admin=True)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a network, by the beginning of their hashes."""

    by_prefix: Mapping[str, tuple[tuple[str, Rights], ...]]

    @property
    def principals(self) -> frozenset[str]:
        """All principals that have one."""
        return frozenset(rights.principal for each in self.by_prefix.values() for _, rights in each)

    @staticmethod
    def of(listed: Mapping[str, Rights]) -> Tokens:
        """Tokens from their hashes, each 64 hexadecimal digits."""
        found: dict[str, list[tuple[str, Rights]]] = {}
        for digest, rights in listed.items():
            found.setdefault(digest[:_PREFIX_CHARACTERS], []).append((digest, rights))
        return Tokens({prefix: tuple(entries) for prefix, entries in found.items()})

    def rights(self, token: str | None) -> Rights:
        """The rights of this token. Raises UsageError when it has none."""
        if token is None:
            raise UsageError("E185", "this node requires a token: pass yours")
        digest = token_hash(token)
        for known, rights in self.by_prefix.get(digest[:_PREFIX_CHARACTERS], ()):
            if hmac.compare_digest(known, digest):
                return rights
        raise UsageError("E185", "this network does not know the token: check it for typos")


class TokenStanding(Enum):
    """What has become of the token of a connected client."""

    SAME = "same"
    CHANGED = "changed"
    GONE = "gone"


def standing(tokens: Tokens | None, rights: Rights) -> TokenStanding:
    """Whether a connected client keeps its rights under these tokens."""
    if tokens is None:
        return TokenStanding.SAME if rights.name is None else TokenStanding.CHANGED
    for known, now in tokens.by_prefix.get(rights.sha256[:_PREFIX_CHARACTERS], ()):
        if known == rights.sha256:
            return TokenStanding.SAME if now == replace(rights, certificate=None) else TokenStanding.CHANGED
    return TokenStanding.GONE


def is_gone(principal: str, tokens: Tokens | None, tls: Tls | None) -> bool:
    """Whether no token or certificate of the network, as it is described now, names this principal."""
    if tokens is not None:
        return principal not in tokens.principals
    if principal == ANONYMOUS:
        return tls is not None and tls.clients is ClientCertificates.REQUIRED
    return tls is None or not principal.startswith("certificate ")


def new_token() -> str:
    """A random token."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """What the network knows of a token.

    >>> token_hash("gapless_example")[:16]
    '1a86cc2d4752f336'
    """
    return hashlib.sha256(token.encode()).hexdigest()


# ---- certificates ------------------------------------------------------------------------------------


class ClientCertificates(Enum):
    """Whether clients must show a certificate of the authority."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of one broker, and what it asks of clients."""

    certificate: Path
    key: Path
    authority: Path
    clients: ClientCertificates = ClientCertificates.NONE

    def server(self) -> ssl.SSLContext:
        """For peers that connect here.

        Brokers and clients come to the same door, so a certificate is asked for and not insisted on; who has
        to have one is decided when it says what it is. One that is shown must be good.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def dialling(self) -> ssl.SSLContext:
        """For the brokers that we connect to: by the authority; `check_broker` looks at the name."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.authority)
        return context


def check_files(tls: Tls, broker: BrokerId) -> float:
    """Check the files of a broker; returns when its certificate expires, in Unix time.

    The broker shakes hands with itself, in memory: whatever its neighbours would find wrong is found here.

    Raises NetworkDescriptionError.
    """
    for name in ("certificate", "key", "authority"):
        path: Path = getattr(tls, name)
        if not path.is_file():
            raise NetworkDescriptionError("E132", f"tls.{name}: there is no file {path}")
    try:
        server, client = tls.server(), tls.dialling()
    except (ssl.SSLError, OSError, ValueError) as error:
        raise NetworkDescriptionError(
            "E132",
            f"tls: {tls.certificate}, {tls.key} and {tls.authority} cannot be used: {trouble(error)}",
        ) from error
    try:
        certificate = _shaken(server, client)
    except ssl.SSLError as error:
        raise NetworkDescriptionError(
            "E132", f"tls.certificate: {tls.certificate} is not accepted by {tls.authority}: {trouble(error)}"
        ) from error
    names = names_of(certificate)
    if broker not in names:
        raise NetworkDescriptionError(
            "E132",
            f"tls.certificate: {tls.certificate} is of {_listed(names)}, not of broker '{broker}': "
            "make one with the broker's name among its alternative names",
        )
    return ssl.cert_time_to_seconds(certificate["notAfter"])


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names in a certificate, as `ssl` gives it: its alternative names, and its common name."""
    if not certificate:
        return frozenset()
    alternative = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    common = [
        value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"
    ]
    return frozenset([*alternative, *common])


def subject_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name of a certificate, or its first alternative name; None when there is no certificate."""
    if not certificate:
        return None
    common = [
        value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"
    ]
    return next(iter([*common, *sorted(names_of(certificate))]), None)


def check_broker(certificate: Mapping[str, Any] | None, broker: str) -> None:
    """Raise PeerError unless this is the certificate of that broker. The authority was checked before."""
    names = names_of(certificate)
    if not names:
        raise PeerError("E225", f"broker '{broker}' shows no certificate: give it one of the authority")
    if broker not in names:
        raise PeerError("E225", f"the certificate is of {_listed(names)}, not of broker '{broker}'")


def days_left(expires: float) -> float:
    """How many days until a certificate expires."""
    return (expires - time.time()) / 86_400


def _shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Let two contexts shake hands; gives the certificate that the server has shown. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(sides)
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
    certificate = sides[0].getpeercert()
    assert certificate is not None, "a server shows its certificate"
    return certificate


def trouble(error: Exception) -> str:
    """What is wrong with a connection or with files, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        verdict = error.verify_message
        # The words of the library differ with what else the peer has sent.
        foreign = any(word in verdict for word in ("issuer", "self-signed", "self signed"))
        return "it is by another authority" if foreign else verdict
    reason = getattr(error, "reason", None)
    text = str(reason).replace("_", " ").lower() if reason else getattr(error, "strerror", None) or str(error)
    return str(text)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nobody"

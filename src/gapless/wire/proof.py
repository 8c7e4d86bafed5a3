"""How do two brokers prove to each other that both know the network's secret, without sending it?

Each makes a *nonce*, unpredictable bytes. A proof is an HMAC, keyed with the secret, over everything that the
two have agreed on: both nonces, both names, the network, the versions that were offered, and which of the two
proves it. So it is useless in another conversation (the nonces differ), to another broker (the names do), or
sent back to its maker (the side does).

```
dialler   HELLO      role=broker, name=a, network, nonce A
acceptor  CHALLENGE  name=b, nonce B, proof that the acceptor knows the secret
dialler   PROOF      proof that the dialler knows it
acceptor  WELCOME
```

The dialler believes nothing before the challenge is verified, and only then sends its own proof; the acceptor
lets the dialler displace nobody and tells it nothing before the proof. A side that has the secret does not
talk to one that skips the challenge.

This authenticates the start of a connection. It neither encrypts nor protects what follows: TLS does.

Implements docs/wire.md, section 3. The host supplies the nonces.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

import msgspec

from gapless.errors import PeerError
from gapless.wire.handshake import NONCE_BYTES, Challenge, Hello, Proof, Welcome

#: The prefix of the proofs of this version. Another scheme gets another prefix.
_LABEL = "gapless link 1"
_DIALLER, _ACCEPTOR = "dialler", "acceptor"

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class NetworkSecret:
    """The secret shared by all brokers of a network. Its `repr` does not reveal it."""

    key: bytes = field(repr=False)

    def proof(self, side: str, hello: Hello, acceptor: str, nonce: bytes) -> bytes:
        """Proves that this side of the conversation begun with `hello` knows the secret."""
        said = [
            *(_LABEL, side, hello.network, hello.role.value, hello.name, acceptor),
            *(hello.version_min, hello.version_max, hello.nonce, nonce),
        ]
        return hmac.digest(self.key, _encode(said), hashlib.sha256)


class Dialling:
    """The side that dials. Without a secret there is nothing to prove, and no proof may be demanded."""

    def __init__(self, secret: NetworkSecret | None, hello: Hello, acceptor: str) -> None:
        """`hello` has a fresh nonce if there is a secret; `acceptor` is the expected name."""
        assert (secret is None) == (not hello.nonce), "a nonce goes with a secret"
        self._secret = secret
        self._hello = hello
        self._acceptor = acceptor
        self._is_proven = secret is None

    def challenged(self, challenge: Challenge) -> Proof:
        """The answer to a challenge, after verifying its proof. Raises PeerError."""
        if self._secret is None:
            raise PeerError(
                "E227",
                f"'{challenge.name}' wants a proof of the network's secret, and this broker has none: give "
                "all brokers the same [secret]",
            )
        if self._is_proven:
            raise PeerError("E213", f"a second CHALLENGE frame came from '{challenge.name}'")
        if challenge.name != self._acceptor:
            raise PeerError("E223", f"'{challenge.name}' answers at the address of '{self._acceptor}'")
        expected = self._secret.proof(_ACCEPTOR, self._hello, self._acceptor, challenge.nonce)
        if not hmac.compare_digest(expected, challenge.proof):
            raise _wrong(challenge.name)
        self._is_proven = True
        return Proof(proof=self._secret.proof(_DIALLER, self._hello, self._acceptor, challenge.nonce))

    def welcomed(self, welcome: Welcome) -> None:
        """Raise PeerError when the acceptor welcomes us without having proved anything."""
        if not self._is_proven:
            raise PeerError(
                "E227",
                f"'{welcome.name}' does not prove that it knows the network's secret: give all brokers the "
                "same [secret]",
            )


class Answering:
    """The side that was dialled, where there is a secret."""

    def __init__(self, secret: NetworkSecret, hello: Hello, acceptor: str, nonce: bytes) -> None:
        """`nonce` is fresh. Raises PeerError when the dialler does not take part."""
        assert len(nonce) == NONCE_BYTES, len(nonce)
        if not hello.nonce:
            raise PeerError(
                "E227",
                f"'{hello.name}' does not prove that it knows the network's secret: give all brokers the "
                "same [secret]",
            )
        self._secret = secret
        self._hello = hello
        self._acceptor = acceptor
        self._nonce = nonce

    def challenge(self) -> Challenge:
        """What the dialler has to answer."""
        return Challenge(
            name=self._acceptor,
            nonce=self._nonce,
            proof=self._secret.proof(_ACCEPTOR, self._hello, self._acceptor, self._nonce),
        )

    def proved(self, proof: Proof) -> None:
        """Raise PeerError unless the dialler knows the secret."""
        expected = self._secret.proof(_DIALLER, self._hello, self._acceptor, self._nonce)
        if not hmac.compare_digest(expected, proof.proof):
            raise _wrong(self._hello.name)


def _wrong(name: str) -> PeerError:
    return PeerError(
        "E228", f"'{name}' does not know the network's secret: give all brokers the same [secret]"
    )

"""How does a client speak TLS, and what does it say when that fails? Contexts, and troubles in one line."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from gapless.errors import LinkError, ParameterError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What TLS needs, as the names of files: another process on a machine that has them may use it too.

    Raises ParameterError for a key without a certificate.
    """

    #: The authority that made the nodes' certificates; None for those that the system trusts.
    authority: str | None = None
    #: The certificate that we show, and its key; None when that is in the same file.
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise ParameterError("E191", "tls: a key goes with a certificate: give both")

    @staticmethod
    def of(authority: str | None, certificate: str | None = None, key: str | None = None) -> TlsFiles | None:
        """These files; None when there is none of them."""
        if authority is certificate is key is None:
            return None
        return TlsFiles(authority, certificate, key)

    def context(self) -> ssl.SSLContext:
        """For a connection of ours. Raises ParameterError for a file that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.authority)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise self._useless(error) from error
        return context

    def for_flight(self) -> dict[str, bytes]:
        """For a connection of Arrow Flight. Raises ParameterError for a file that cannot be read."""
        found = {
            "tls_root_certs": self.authority,
            "cert_chain": self.certificate,
            "private_key": self.key or self.certificate,
        }
        try:
            return {name: Path(file).read_bytes() for name, file in found.items() if file is not None}
        except OSError as error:
            raise self._useless(error) from error

    def _useless(self, error: OSError) -> ParameterError:
        files = " and ".join(file for file in (self.authority, self.certificate, self.key) if file)
        reason = error.strerror or "no certificate or key is there"
        return ParameterError("E191", f"tls: {files} cannot be used: {reason}")


#: How TLS is asked for: a context, files, that of an authority alone, True for the authorities of the system.
TlsWish: TypeAlias = bool | str | PathLike[str] | TlsFiles | ssl.SSLContext | None

#: What a TLS record of an alert begins with: a node that expects TLS sends one to whoever does not speak it.
ALERT = b"\x15\x03"


def tls_context(wish: TlsWish, *, wanted: bool) -> ssl.SSLContext | None:
    """The context for a wish; None without TLS. `wanted` is whether the address asks for TLS.

    Raises ParameterError for a file that cannot be used.
    """
    if wish is False and wanted:
        raise ParameterError("E191", "tls is False, and the address asks for TLS: write gapless://")
    if isinstance(wish, ssl.SSLContext):
        return wish
    if isinstance(wish, TlsFiles):
        return wish.context()
    if isinstance(wish, str | PathLike):
        try:
            return ssl.create_default_context(cafile=Path(wish))
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or "it holds no certificate"
            raise ParameterError("E191", f"tls: {wish} cannot be used as an authority: {reason}") from error
    return ssl.create_default_context() if wish or wanted else None


def tls_error(error: ssl.SSLError) -> LinkError:
    """What went wrong with TLS, in one line that says what to do.

    >>> error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    >>> print(tls_error(error).message)
    the node does not speak TLS: connect with gapless://
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return LinkError("E404", f"the node's certificate is not accepted: {_verdict(error)}")
    reason = getattr(error, "reason", None) or str(error)
    if any(word in reason for word in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")):
        return LinkError("E404", "the node does not speak TLS: connect with gapless://")
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return LinkError("E404", f"the node does not accept our certificate: {_words(reason)}")
    return LinkError("E404", f"TLS failed: {_words(reason)}")


def needs_tls() -> LinkError:
    """The node answered in TLS, or hung up, where we had said hello in plain."""
    return LinkError("E404", "the node speaks TLS: connect with gapless+tls://")


def hung_up(reason: Exception | None, *, is_tls: bool) -> LinkError:
    """The node is gone before it has said a word: it may have crashed, or not understood us.

    >>> print(hung_up(None, is_tls=False))
    E403 the node hung up without a word: if it speaks TLS, connect with gapless+tls://
    """
    told = f" ({reason})" if reason is not None else ""
    if is_tls:
        text = f"the node hung up without a word{told}: if it asks for certificates, show a good one"
    else:
        text = f"the node hung up without a word{told}: if it speaks TLS, connect with gapless+tls://"
    return LinkError("E403", text, retry=True)


def _verdict(error: ssl.SSLCertVerificationError) -> str:
    told = error.verify_message
    if "expired" in told:
        return f"{told}: renew it"
    if "ismatch" in told:
        return f"{told.rstrip('.')}: connect with a name that is in it"
    if "issuer" in told or "self-signed" in told or "self signed" in told:
        return "it is by an authority that we do not trust: give the one that made it, as tls= or --ca"
    return told


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()

"""How does a client use TLS, and how does it report failures? SSL contexts, and one-line errors."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from gapless.errors import LinkError, ParameterError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files TLS needs, by name, so that another process that has them can use them too.

    Raises ParameterError for a key without a certificate.
    """

    #: The CA that issued the nodes' certificates; None for the system's CAs.
    authority: str | None = None
    #: Our certificate and its key; the key is None if it is in the same file.
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.certificate is None:
            raise ParameterError("E191", "tls: a key needs a certificate: give both")

    @staticmethod
    def of(authority: str | None, certificate: str | None = None, key: str | None = None) -> TlsFiles | None:
        """These files; None if all are None."""
        if authority is certificate is key is None:
            return None
        return TlsFiles(authority, certificate, key)

    def context(self) -> ssl.SSLContext:
        """An SSL context. Raises ParameterError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.authority)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise self._useless(error) from error
        return context

    def for_flight(self) -> dict[str, bytes]:
        """Arguments for an Arrow Flight client. Raises ParameterError if a file cannot be read."""
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
        reason = error.strerror or "it has no certificate or key"
        return ParameterError("E191", f"tls: {files} cannot be used: {reason}")


#: How to ask for TLS: an SSL context, files, a CA file alone, or True for the system's CAs.
TlsOption: TypeAlias = bool | str | PathLike[str] | TlsFiles | ssl.SSLContext | None

#: First bytes of a TLS alert record: what a node that expects TLS answers to a plain connection.
ALERT = b"\x15\x03"


def tls_context(option: TlsOption, *, wanted: bool) -> ssl.SSLContext | None:
    """The SSL context to use; None without TLS. `wanted` says whether the address asks for TLS.

    Raises ParameterError if a file cannot be used.
    """
    if option is False and wanted:
        raise ParameterError("E191", "tls is False, but the address asks for TLS: write gapless://")
    if isinstance(option, ssl.SSLContext):
        return option
    if isinstance(option, TlsFiles):
        return option.context()
    if isinstance(option, str | PathLike):
        try:
            return ssl.create_default_context(cafile=Path(option))
        except (OSError, ssl.SSLError) as error:
            reason = error.strerror or "it has no certificate"
            raise ParameterError("E191", f"tls: {option} cannot be used as a CA file: {reason}") from error
    return ssl.create_default_context() if option or wanted else None


def tls_error(error: ssl.SSLError) -> LinkError:
    """A TLS failure as a one-line error that says what to do.

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
    """The error for a node that answers a plain connection with TLS."""
    return LinkError("E404", "the node speaks TLS: connect with gapless+tls://")


def hung_up(reason: Exception | None, *, is_tls: bool) -> LinkError:
    """The error for a node that closes before it has sent anything: it crashed, or did not understand us.

    >>> print(hung_up(None, is_tls=False))
    E403 the node closed the connection without an answer: if it speaks TLS, connect with gapless+tls://
    """
    detail = f" ({reason})" if reason is not None else ""
    if is_tls:
        text = f"the node closed the connection without an answer{detail}: it may want a client certificate"
    else:
        text = (
            f"the node closed the connection without an answer{detail}: "
            "if it speaks TLS, connect with gapless+tls://"
        )
    return LinkError("E403", text, retry=True)


def _verdict(error: ssl.SSLCertVerificationError) -> str:
    problem = error.verify_message
    if "expired" in problem:
        return f"{problem}: renew it"
    if "ismatch" in problem:
        return f"{problem.rstrip('.')}: connect to a name that it lists"
    if "issuer" in problem or "self-signed" in problem or "self signed" in problem:
        return "its CA is not trusted: pass the CA file as tls= or --ca"
    return problem


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()

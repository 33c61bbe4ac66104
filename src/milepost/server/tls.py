"""The files of a server that speaks HTTPS, looked at before a model is loaded."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.errors import ConfigError


@dataclass(frozen=True)
class Tls:
    """vLLM's flags. `certfile`: the certificate with its chain, and the key too where `keyfile` is None. `cert_reqs`:
    whether clients must have certificates (0: no, 1: those they send are checked, 2: yes) that `ca_certs` has signed.

    Raises `ConfigError` that names the flag, for files that are not there, do not fit, or need a password.
    """

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = 0

    def __post_init__(self) -> None:
        if self.cert_reqs and self.ca_certs is None:
            raise ConfigError(
                "--ssl-cert-reqs needs --ssl-ca-certs", "name the file of who signs clients' certificates"
            )
        if self.ca_certs is not None and not self.cert_reqs:
            raise ConfigError(
                "--ssl-ca-certs without --ssl-cert-reqs checks nobody's certificate",
                "add --ssl-cert-reqs 2, or leave --ssl-ca-certs out",
            )
        for flag, name in (
            ("--ssl-certfile", self.certfile),
            ("--ssl-keyfile", self.keyfile),
            ("--ssl-ca-certs", self.ca_certs),
        ):
            _check_readable(flag, name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password of ours the server would stand still to ask a terminal for one.
            context.load_cert_chain(self.certfile, self.keyfile, lambda: "")
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"the certificate {self.certfile} and its key cannot be used: {_reason(error)}",
                "PEM files that belong together, the key without a password",
            ) from None
        try:
            if self.ca_certs is not None:
                context.load_verify_locations(self.ca_certs)
        except ssl.SSLError as error:
            raise ConfigError(
                f"--ssl-ca-certs {self.ca_certs} cannot be used: {_reason(error)}", "a PEM file"
            ) from None

    def for_uvicorn(self) -> dict[str, Any]:
        return {
            "ssl_certfile": self.certfile,
            "ssl_keyfile": self.keyfile,
            "ssl_ca_certs": self.ca_certs,
            "ssl_cert_reqs": self.cert_reqs,
        }


def tls_of(certfile: str | None, keyfile: str | None, ca_certs: str | None, cert_reqs: int) -> Tls | None:
    """Of flags that may be left out; None where all are. Raises as `Tls`."""
    if certfile is not None:
        return Tls(certfile, keyfile, ca_certs, cert_reqs)
    if keyfile is None and ca_certs is None and not cert_reqs:
        return None
    raise ConfigError("HTTPS needs --ssl-certfile", "name the certificate's file, or leave the other --ssl flags out")


def _check_readable(flag: str, name: str | None) -> None:
    try:
        if name is not None:
            Path(name).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"{flag} {name} cannot be read: {reason}", "name a PEM file") from None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)

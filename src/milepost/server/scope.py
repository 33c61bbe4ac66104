"""Who shares cached prefixes with whom: a name for each circle, which nobody without the secret can guess or choose."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from hashlib import blake2b, sha256
from pathlib import Path

logger = logging.getLogger(__name__)

SECRET_BYTES = 32
OWNER_ONLY = 0o077
"""Permissions that the secret's file must not give."""


class UnusableSecret(Exception):
    """The file is there and cannot be trusted; the text says why."""


def tenant_of(key: bytes) -> bytes:
    """What tells the users of one API key from all others: its digest, never the key."""
    return sha256(key).digest()


def scope_name(secret: bytes, tenant: bytes, salt: str) -> str:
    """The scope of a request, 64 hex digits: keyed BLAKE2b (RFC 7693) of the tenant and what its client adds.

    The tenant's length comes first, so that no salt of one tenant makes the name of another's. `tenant` is empty where
    all share.
    """
    # JSON can spell half a surrogate pair, which strict UTF-8 refuses.
    data = len(tenant).to_bytes(8, "little") + tenant + salt.encode("utf-8", "surrogatepass")
    return blake2b(data, key=secret, digest_size=32).hexdigest()


def secret_path() -> Path:
    """Beside the configuration; a relative $XDG_CONFIG_HOME does not count, as its specification asks."""
    home = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (home if home.is_absolute() else Path("~/.config").expanduser()) / "milepost" / "secret"


def installation_secret() -> bytes:
    """The secret of this installation, made at its first start. Where it can be neither read nor kept, one for this
    process, and a warning."""
    path = "~/.config/milepost/secret"
    try:
        found = secret_path()
        path = str(found)
        return _kept_secret(found)
    except (OSError, RuntimeError, UnusableSecret) as error:  # RuntimeError: there is no home folder
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        logger.warning(
            "the secret that names cache scopes cannot be used: %s: %s; this process makes one of its own "
            "(hint: remove that file, or set XDG_CONFIG_HOME to a folder that you can write to)",
            path,
            reason,
        )
        return os.urandom(SECRET_BYTES)


def _kept_secret(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another server was first: its secret counts
        _create(path)
    return _read(path)


def _read(path: Path) -> bytes:
    """Follows no link, and trusts no file that others could have read or written."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableSecret("it is no file")
        if found.st_uid != os.geteuid() or found.st_mode & OWNER_ONLY:
            raise UnusableSecret("others may read or write it")
        secret = file.read(SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        raise UnusableSecret(f"it does not hold {SECRET_BYTES} bytes")
    return secret


def _create(path: Path) -> None:
    """Puts a whole file there or none: nobody reads half a secret, and one that is there already stays."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(number)
        os.link(draft, path)
    finally:
        os.unlink(draft)

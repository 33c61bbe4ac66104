"""HTTPS, and files for it that cannot be used."""

import ssl

import httpx
import pytest
import trustme
import uvicorn
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from fake_engine import FakeEngine, running, state_of

from milepost.errors import ConfigError
from milepost.server.app import create_app
from milepost.server.run import listen, url_of
from milepost.server.tls import Tls, tls_of


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Names of files: 127.0.0.1's certificate and its key, both in one, the key behind a password; who signed it; a key
    that belongs to another certificate."""
    authority = trustme.CA()
    cert, other = authority.issue_cert("127.0.0.1"), authority.issue_cert("127.0.0.1")
    key = cert.private_key_pem.bytes()
    locked = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")
    )
    chain = b"".join(pem.bytes() for pem in cert.cert_chain_pems)
    texts = {
        "cert": chain,
        "key": key,
        "both": chain + key,
        "locked": locked,
        "ca": authority.cert_pem.bytes(),
        "other": other.private_key_pem.bytes(),
        "none": b"no PEM",
    }
    folder = tmp_path_factory.mktemp("tls")
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return {name: str(folder / name) for name in texts} | {"missing": str(folder / "missing")}


@pytest.mark.parametrize(("cert", "key"), [("cert", "key"), ("both", None)])
def test_https(files: dict[str, str], cert: str, key: str | None):
    tls = Tls(files[cert], key and files[key])
    with listen("127.0.0.1", 0) as sock:
        url = url_of(sock, tls)
        assert url.startswith("https://127.0.0.1:")
        config = uvicorn.Config(
            create_app(state_of(FakeEngine())), log_config=None, lifespan="off", **tls.for_uvicorn()
        )
        with running(config, sock):
            trusts = ssl.create_default_context(cafile=files["ca"])
            assert httpx.get(f"{url}/v1/models", verify=trusts).status_code == 200
            assert httpx.get(f"{url}/v1/models", verify=trusts, headers={"Origin": url}).status_code == 200
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{url}/v1/models")
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"http://{url.removeprefix('https://')}/v1/models")


def test_clients_need_certificates(files: dict[str, str]):
    tls = Tls(files["cert"], files["key"], files["ca"], 2)
    with listen("127.0.0.1", 0) as sock:
        url = url_of(sock, tls)
        config = uvicorn.Config(
            create_app(state_of(FakeEngine())), log_config=None, lifespan="off", **tls.for_uvicorn()
        )
        with running(config, sock):
            trusts = ssl.create_default_context(cafile=files["ca"])
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{url}/v1/models", verify=trusts)
            trusts.load_cert_chain(files["cert"], files["key"])
            assert httpx.get(f"{url}/v1/models", verify=trusts).status_code == 200


@pytest.mark.parametrize(
    ("cert", "key", "ca", "reqs", "told"),
    [
        ("missing", None, None, 0, "--ssl-certfile .*missing cannot be read: No such file"),
        ("cert", "missing", None, 0, "--ssl-keyfile .*missing cannot be read: No such file"),
        ("cert", "key", "missing", 2, "--ssl-ca-certs .*missing cannot be read: No such file"),
        ("cert", "key", "none", 2, "--ssl-ca-certs .*none cannot be used"),
        ("cert", None, None, 0, "cert and its key cannot be used"),
        ("cert", "other", None, 0, "cert and its key cannot be used"),
        ("cert", "locked", None, 0, "cert and its key cannot be used"),
        ("none", "key", None, 0, "none and its key cannot be used"),
        ("cert", "key", "ca", 0, "--ssl-ca-certs without --ssl-cert-reqs"),
        ("cert", "key", None, 2, "--ssl-cert-reqs needs --ssl-ca-certs"),
        (None, "key", None, 0, "HTTPS needs --ssl-certfile"),
        (None, None, None, 1, "HTTPS needs --ssl-certfile"),
    ],
)
def test_what_cannot_be_used(files: dict[str, str], cert: str, key: str, ca: str, reqs: int, told: str):
    names = (name and files[name] for name in (cert, key, ca))
    with pytest.raises(ConfigError, match=told) as caught:
        tls_of(*names, reqs)
    assert caught.value.hint


def test_no_flags_no_tls():
    assert tls_of(None, None, None, 0) is None

"""HTTPS, and files for it that cannot be used."""

import ssl
from pathlib import Path

import httpx
import pytest
import uvicorn
from fake_engine import FakeEngine, running, state_of

from milepost.errors import ConfigError
from milepost.server.app import create_app
from milepost.server.run import listen, url_of
from milepost.server.tls import Tls, tls_of

# Of 127.0.0.1, by itself, until the year 2126; and a key that belongs to another.
CERT = """-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIULL8fM4EGFlPsBrH/SBb4m/cTVE0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEzMDIzMjYyNFoYDzIxMjYxMTA2
MjMyNjI0WjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAARHZHXGSc1ymaQ/kjsGj9PMmxCyBsKShJvxlA43a4YTgrysFaLHFfnO
g+ViO/TDpVL78ijHYqTPFLcPjvXt/DN6o2QwYjAdBgNVHQ4EFgQUDdyEZ3bhGNcL
4XPZQeqrcYPl5LAwHwYDVR0jBBgwFoAUDdyEZ3bhGNcL4XPZQeqrcYPl5LAwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQDCnNjdaEaxK4VYldNcJ7PVah919+W8Xp7vapJhUD1qTQIhAJFIkp9TXoO52Uo2
q/zX1X7EbBOu8+ipnfPLwqLoJtwm
-----END CERTIFICATE-----
"""
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgzeZjrB5Z8RDdIdQs
r1yxrBpjgDj9z8gHM0GxelaWlqihRANCAARHZHXGSc1ymaQ/kjsGj9PMmxCyBsKS
hJvxlA43a4YTgrysFaLHFfnOg+ViO/TDpVL78ijHYqTPFLcPjvXt/DN6
-----END PRIVATE KEY-----
"""
OTHER_KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgOCe+Xeq9HinYih8e
3hIHfVtlHWEHmGZauj1kLHCGxrihRANCAASXvPG+CfFvCKzLmQc7Em7o4ebdrTfr
6q8ELs842m+pIy3WJYtR/DUzN/G8W7Y9XoAH5TFaYqmuKJrRJOArrek5
-----END PRIVATE KEY-----
"""
LOCKED_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAgWlwRdJiHrZwICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEOWbGjkbag0rTCcuBNdOzssEgZDO
9X1Qw4ZlpFh4TIDLwPZGfOVwUq1PDjEGizDkpmeW4T7+K8hqyI7sS28Z7dbY4EB3
/5FmNjjv6eJ3gVVUHPzTlM0LgND5PSYbKkp4drYA8/38FnOUS80xawgpCrGabE0L
k0lMuucPUqw0hda/GJxzt+IISOB3gahQEDECeQjjoGS/iyvRCCNezG1HR3LWaUY=
-----END ENCRYPTED PRIVATE KEY-----
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    texts = {"cert": CERT, "key": KEY, "both": CERT + KEY, "other": OTHER_KEY, "locked": LOCKED_KEY, "none": "no PEM"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return {name: str(tmp_path / name) for name in texts} | {"missing": str(tmp_path / "missing")}


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
            trusts = ssl.create_default_context(cafile=files["cert"])
            assert httpx.get(f"{url}/v1/models", verify=trusts).status_code == 200
            assert httpx.get(f"{url}/v1/models", verify=trusts, headers={"Origin": url}).status_code == 200
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"{url}/v1/models")
            with pytest.raises(httpx.HTTPError):
                httpx.get(f"http://{url.removeprefix('https://')}/v1/models")


def test_clients_need_certificates(files: dict[str, str]):
    tls = Tls(files["cert"], files["key"], files["cert"], 2)
    with listen("127.0.0.1", 0) as sock:
        url = url_of(sock, tls)
        config = uvicorn.Config(
            create_app(state_of(FakeEngine())), log_config=None, lifespan="off", **tls.for_uvicorn()
        )
        with running(config, sock):
            trusts = ssl.create_default_context(cafile=files["cert"])
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
        ("cert", "key", "cert", 0, "--ssl-ca-certs without --ssl-cert-reqs"),
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

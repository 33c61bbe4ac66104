"""Who shares cached prefixes with whom, and the secret behind it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of
from real_engine import running_engine

from milepost.errors import ConfigError
from milepost.server.scope import SECRET_BYTES, installation_secret, scope_name
from milepost.server.state import Engine, ServerSettings

PROMPT = [i % 90 + 1 for i in range(200)]
KEYS = ("one", "two")


@pytest.fixture(params=["fake", "real"])
def fresh_engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "fake":
        yield FakeEngine()
    else:
        with running_engine() as engine:
            yield engine


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "milepost"


def cached(url: str, key: str | None = None, salt: str | None = None) -> int:
    """Asks once, and says how many tokens of the prompt were there."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    body = {"model": "", "prompt": PROMPT, "max_tokens": 1, "cache_salt": salt}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_two_keys_never_share_and_one_key_does(fresh_engine: Engine) -> None:
    with serving(state_of(fresh_engine, api_keys=KEYS)) as url:
        assert cached(url, "one") == 0
        assert cached(url, "two") == 0, "another key's prefix was found"
        assert cached(url, "one") >= 128
        assert cached(url, "two") >= 128


def test_a_salt_narrows_and_never_widens(fresh_engine: Engine) -> None:
    with serving(state_of(fresh_engine, api_keys=KEYS)) as url:
        assert cached(url, "one") == 0
        assert cached(url, "one", "salt") == 0
        assert cached(url, "one", "salt") >= 128
        assert cached(url, "one", "other salt") == 0
        assert cached(url, "two", "salt") == 0, "two keys share by using one salt"
        assert cached(url, "one", "") >= 128, "no salt and an empty one are the same"


@pytest.mark.parametrize("settings", [{}, {"cache_scope": "global"}, {"cache_scope": "global", "api_keys": KEYS}])
def test_a_global_cache_is_shared_by_all_and_salts_still_narrow(settings: dict[str, Any]) -> None:
    with serving(state_of(FakeEngine(), **settings)) as url:
        assert cached(url, "one") == 0
        assert cached(url, "two") >= 128
        assert cached(url, "two", "salt") == 0
        assert cached(url, "one", "salt") >= 128


def test_the_engine_is_told_neither_key_nor_salt() -> None:
    engine = FakeEngine()
    with serving(state_of(engine, api_keys=KEYS)) as url:
        cached(url, "one", "my salt")
        cached(url, "one")
    scopes = [scope for *_, scope in engine.asked]
    assert len(set(scopes)) == 2
    assert all(len(scope) == 64 and int(scope, 16) for scope in scopes)


def test_names_differ_by_secret_tenant_and_salt() -> None:
    secret = b"s" * SECRET_BYTES
    name = scope_name(secret, b"tenant", "salt")
    assert name == scope_name(secret, b"tenant", "salt")
    others = [
        scope_name(b"t" * SECRET_BYTES, b"tenant", "salt"),
        scope_name(secret, b"tenan", "tsalt"),
        scope_name(secret, b"tenants", "alt"),
        scope_name(secret, b"", "tenantsalt"),
        scope_name(secret, b"tenant", ""),
        scope_name(secret, b"tenant", "\ud800"),
    ]
    assert len({name, *others}) == 1 + len(others)


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="--cache-scope cannot be 'mine'"):
        ServerSettings(cache_scope="mine")
    with pytest.raises(ConfigError, match="there are none"):
        ServerSettings(cache_scope="tenant")
    assert ServerSettings(api_keys=KEYS, cache_scope="tenant").shares_within_tenant
    assert not ServerSettings().shares_within_tenant


def test_the_secret_is_made_once_for_its_owner_only(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = installation_secret()
    assert len(secret) == SECRET_BYTES
    file = home / "secret"
    assert file.read_bytes() == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert installation_secret() == secret
    assert list(home.iterdir()) == [file], "no draft is left"
    assert not caplog.records
    file.unlink()
    assert installation_secret() != secret


def test_prefixes_have_the_same_names_after_a_restart(home: Path) -> None:
    """What is kept outside the process can be found again."""
    assert scope_name(installation_secret(), b"a", "") == scope_name(installation_secret(), b"a", "")


def shorten(file: Path) -> None:
    file.write_bytes(b"short")


def lengthen(file: Path) -> None:
    file.write_bytes(b"x" * (SECRET_BYTES + 1))


def expose(file: Path) -> None:
    file.chmod(0o640)


def make_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir(mode=0o700)


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


@pytest.mark.parametrize("damage", [shorten, lengthen, expose, make_link, make_folder, make_pipe])
def test_a_file_that_cannot_be_trusted_is_not_used(
    damage: Callable[[Path], None], home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = installation_secret()
    damage(home / "secret")
    one, other = installation_secret(), installation_secret()
    assert len({kept, one, other}) == 3
    assert len(one) == SECRET_BYTES
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    told = caplog.records[0].getMessage()
    assert str(home / "secret") in told
    assert "hint: " in told
    assert "\n" not in told


def test_where_no_file_can_be_kept_a_secret_is_made_for_the_process(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.parent.write_text("a file where the folder should be")
    assert len(installation_secret()) == SECRET_BYTES
    (record,) = caplog.records
    assert "hint: " in record.getMessage()


def test_a_relative_config_home_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    secret = installation_secret()
    assert (tmp_path / "home" / ".config" / "milepost" / "secret").read_bytes() == secret
    assert not (tmp_path / "here").exists()


def test_a_server_that_was_first_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two start at once: the second finds a file where it was about to put its own."""
    link, first = os.link, os.urandom(SECRET_BYTES)

    def late(source: Path, target: Path) -> None:
        target.write_bytes(first)
        target.chmod(0o600)
        link(source, target)

    monkeypatch.setattr("milepost.server.scope.os.link", late)
    assert installation_secret() == first
    assert [file.name for file in home.iterdir()] == ["secret"]

"""The page's files, and who gets them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of

from milepost.server.page import FOLDER, HEADERS, PREFIX

FILES = sorted(path.name for path in FOLDER.iterdir())
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Elements(HTMLParser):
    """All elements of a document, with their attributes; `inside`: text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def of(self, attribute: str) -> list[str]:
        return [str(attributes[attribute]) for _, attributes in self.found if attribute in attributes]


@pytest.fixture(scope="module")
def document() -> Elements:
    return Elements((FOLDER / "index.html").read_text())


@pytest.fixture(scope="module")
def with_keys() -> Iterator[httpx.Client]:
    state = state_of(FakeEngine(), api_keys=("one", "zwei:ü"))
    with serving(state) as url, httpx.Client(base_url=url) as client:
        yield client


def basic(password: str, name: str = "") -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.parametrize("path", ["/", *(PREFIX + name for name in FILES)])
def test_every_file_is_served_with_its_type_and_a_strict_policy(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 200
    name = path.removeprefix(PREFIX) if path != "/" else "index.html"
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == TYPES[name.rpartition(".")[2]]
    assert {key: answer.headers[key] for key in HEADERS} == HEADERS
    again = http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert http.head(path).headers["content-length"] == str(len(answer.content))


def test_the_policy_lets_nothing_run_but_the_pages_own_files(http: httpx.Client) -> None:
    policy = http.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy


@pytest.mark.parametrize(
    "path",
    ["/page", "/page/", "/page/page.py", "/page/..%2fpage.py", "/page/../page.py", "/index.html", "/page/a/b.js"],
)
def test_nothing_else_is_there(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 404


def test_the_page_needs_the_key_too(with_keys: httpx.Client) -> None:
    for path in ("/", "/page/main.js", "/page/nothing"):
        for headers in ({}, basic("two"), basic(""), {"Authorization": "Basic ?"}, {"Authorization": "Basic"}):
            refused = with_keys.get(path, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic realm=")
    for headers in (basic("one"), basic("one", "me"), basic("zwei:ü"), {"Authorization": "Bearer one"}):
        assert with_keys.get("/", headers=headers).status_code == 200
        assert with_keys.get("/page/main.js", headers=headers).status_code == 200


def test_what_a_browser_sends_unasked_opens_the_page_alone(with_keys: httpx.Client) -> None:
    for path in ("/v1/models", "/cache", "/metrics", "/nowhere", "/pages"):
        refused = with_keys.get(path, headers=basic("one"))
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_it_is_there_while_the_model_loads() -> None:
    with serving(state_of(None)) as url:
        assert httpx.get(f"{url}/").status_code == 200
        assert httpx.get(f"{url}/page/main.js").status_code == 200
        assert httpx.get(f"{url}/cache").status_code == 503


def test_it_loads_its_own_files_alone(document: Elements) -> None:
    loaded = document.of("src") + document.of("href")
    assert all(path in [PREFIX + name for name in FILES] or path.startswith("#") for path in loaded)
    for name in FILES:
        text = (FOLDER / name).read_text()
        assert not re.search(r"""(?:url\(|@import|src=|href=)["']?(?:https?:)?//""", text), name
        for module in re.findall(r'from "\./([\w.-]+)"', text):
            assert module in FILES


def test_nothing_in_it_needs_a_weaker_policy(document: Elements) -> None:
    for tag, attributes in document.found:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        assert tag != "style"
        assert tag != "script" or attributes.get("src")
    for name in (name for name in FILES if name.endswith(".js")):
        text = (FOLDER / name).read_text()
        for unsafe in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "localStorage",
        ):
            assert unsafe not in text, (name, unsafe)


def test_what_scripts_look_for_is_in_the_document(document: Elements) -> None:
    ids = document.of("id")
    assert len(ids) == len(set(ids))
    for name in (name for name in FILES if name.endswith(".js")):
        wanted = re.findall(r'byId\("([\w-]+)"\)', (FOLDER / name).read_text())
        assert set(wanted) <= set(ids), name
    for attribute in ("for", "aria-controls", "aria-labelledby", "aria-describedby", "data-close"):
        assert set(document.of(attribute)) <= set(ids), attribute


def test_whatever_can_be_typed_or_pressed_has_a_name(document: Elements) -> None:
    labelled = set(document.of("for"))
    for tag, attributes in document.found:
        if tag in ("input", "textarea"):
            assert attributes["id"] in labelled
        if tag in ("dialog", "section", "nav"):
            assert "aria-label" in attributes or "aria-labelledby" in attributes, attributes


def test_files_are_short() -> None:
    assert [name for name in FILES if len((FOLDER / name).read_text().splitlines()) >= 300] == []

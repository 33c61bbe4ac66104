import pytest
import typer

from milepost.cli.options import parse_list, parse_size
from milepost.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        (4096, 4096),
        ("0", 0),
        ("4k", 4000),
        ("4K", 4096),
        ("2g", 2 * 10**9),
        ("2G", 2 * 2**30),
        ("2GiB", 2 * 2**30),
        ("2gib", None),
        ("2GB", 2 * 10**9),
        (" 1M ", 2**20),
        ("-1", None),
        ("1.5G", None),
        ("", None),
        ("G", None),
        ("4Q", None),
        ("9" * 100, None),
    ],
)
def test_sizes(text: str, size: int | None):
    if size is not None:
        assert parse_size(text) == size
    else:
        with pytest.raises(typer.BadParameter, match="not a size"):
            parse_size(text)


def test_lists_repeated_or_in_json():
    assert parse_list("--allowed-origins", None) == ()
    assert parse_list("--allowed-origins", ["*", " a "]) == ("*", "a")
    assert parse_list("--allowed-origins", ['["a", "b"]', "c"]) == ("a", "b", "c")
    for bad in ("", "[1]", "[", '[""]'):
        with pytest.raises(ConfigError, match="--allowed-origins cannot be"):
            parse_list("--allowed-origins", [bad])

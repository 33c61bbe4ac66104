import pytest
import typer

from milepost.cli.options import parse_size


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

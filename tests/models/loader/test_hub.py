"""Hub names: what is fetched, what the cache saves, and every refusal in one line."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import tiny_models as tiny
import torch
from fake_hub import FakeHub, fake_hub, point_at

from milepost.errors import ModelError
from milepost.models.loader.hub import pick_gguf
from milepost.models.loader.load import load_model, open_model
from milepost.models.loader.resolve import resolve

REPO = "some-org/tiny.llama-0.1"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub(tmp_path / "cache", monkeypatch) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A repository of a model in shards, with files that nobody needs."""
    folder = tmp_path_factory.mktemp("model")
    tiny.tiny_llama().save_pretrained(folder, max_shard_size="60KB")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = {"tokenizer_config.json": b"{}", "README.md": b"# hi", "pytorch_model.bin": b"x", "a/model.onnx": b"x"}
    return found | others


def test_a_model_in_shards(hub: FakeHub, files: dict[str, bytes]) -> None:
    hub.repos[REPO] = files
    folder = resolve(REPO)
    assert sorted(path.name for path in folder.iterdir()) == hub.downloads()
    assert hub.downloads() == sorted(n for n in files if n.endswith((".json", ".safetensors")))
    assert load_model(open_model(REPO), torch.float32).weight_bytes > 0


def test_what_the_cache_holds_is_not_asked_for(hub: FakeHub, files: dict[str, bytes]) -> None:
    hub.repos[REPO] = files
    folder = resolve(REPO)
    hub.asked.clear()
    assert resolve(REPO) == folder
    assert hub.asked == []


def test_a_download_that_broke_off_goes_on(hub: FakeHub, files: dict[str, bytes]) -> None:
    hub.repos[REPO] = files
    folder = resolve(REPO)
    lost = [next(folder.glob("model-00002-*")), folder / "tokenizer_config.json"]
    for path in lost:
        path.resolve().unlink()
        path.unlink()
    hub.asked.clear()
    assert resolve(REPO) == folder
    assert all(path.is_file() for path in lost)
    assert hub.downloads() == [path.name for path in lost]


def test_offline_the_cache_must_do(hub: FakeHub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = files
    folder = resolve(REPO)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert resolve(REPO) == folder
    next(folder.glob("model-00002-*")).unlink()
    with pytest.raises(ModelError, match=r"not all of it is in the hub's cache \(hint: unset HF_HUB_OFFLINE"):
        resolve(REPO)


def test_a_model_without_tokenizer_is_checked_for_more_unless_the_hub_is_away(
    hub: FakeHub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos[REPO] = {name: body for name, body in files.items() if name != "tokenizer_config.json"}
    folder = resolve(REPO)
    hub.asked.clear()
    assert resolve(REPO) == folder
    assert hub.asked
    assert hub.downloads() == []
    point_at("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)
    assert resolve(REPO) == folder


def test_other_copies_of_the_weights_are_not_fetched(hub: FakeHub, files: dict[str, bytes]) -> None:
    others = ("consolidated.safetensors", "original/params.json", "onnx/config.json", "more/model.safetensors")
    hub.repos[REPO] = files | dict.fromkeys(others, b"x") | {"additional_chat_templates/rag.jinja": b"y"}
    folder = resolve(REPO)
    assert not set(hub.downloads()) & set(others)
    assert (folder / "additional_chat_templates" / "rag.jinja").is_file()
    hub.repos["other/model"] = {"consolidated.safetensors": b"x", "params.json": b"{}"}
    with pytest.raises(ModelError, match="has no safetensors that can be read"):
        resolve("other/model")


def test_one_gguf_file_of_several(hub: FakeHub) -> None:
    hub.repos[REPO] = {
        "tiny-Q4_K.gguf": b"1",
        "tiny-Q4_K_M.gguf": b"2",
        "tiny-Q8_0.gguf": b"3",
        "mmproj-tiny-Q8_0.gguf": b"4",
        "README.md": b"5",
    }
    assert resolve(f"{REPO}:Q4_K_M").read_bytes() == b"2"
    assert resolve(f"{REPO}:q8_0").read_bytes() == b"3"
    assert resolve(f"{REPO}:mmproj-tiny-Q8_0.gguf").read_bytes() == b"4"
    assert hub.downloads() == ["mmproj-tiny-Q8_0.gguf", "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"]
    hub.asked.clear()
    assert resolve(f"{REPO}:Q4_K_M").name == "tiny-Q4_K_M.gguf"
    assert hub.asked == []
    with pytest.raises(
        ModelError, match=r"no GGUF file of .* fits 'Q2_K': it has .*, tiny-Q4_K.gguf, .*hint: name one"
    ):
        resolve(f"{REPO}:Q2_K")
    with pytest.raises(ModelError, match=rf"has no safetensors .*hint: name one of its GGUF files, such as {REPO}:\w"):
        resolve(REPO)


def test_all_parts_of_a_split_gguf_file(hub: FakeHub) -> None:
    names = [f"Q8_0/tiny-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    hub.repos[REPO] = {name: bytes([i]) for i, name in enumerate(names)} | {"tiny-Q4_0.gguf": b"9"}
    first = resolve(f"{REPO}:Q8_0")
    assert first.name == "tiny-Q8_0-00001-of-00003.gguf"
    assert sorted(path.name for path in first.parent.iterdir()) == [name[5:] for name in names]
    next(first.parent.glob("*-00002-*")).unlink()
    assert resolve(f"{REPO}:Q8_0") == first
    assert len(list(first.parent.iterdir())) == 3


def test_the_only_gguf_file_needs_no_name(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO] = {"only.gguf": b"1", "README.md": b"2"}
    assert resolve(REPO).read_bytes() == b"1"
    point_at("http://127.0.0.1:9", tmp_path / "cache", monkeypatch)
    assert resolve(REPO).read_bytes() == b"1"


def test_a_repository_of_pickles(hub: FakeHub) -> None:
    hub.repos[REPO] = {"config.json": b"{}", "pytorch_model.bin": b"2"}
    with pytest.raises(ModelError, match=r"has no safetensors that can be read \(hint: .*pickled weights are not read"):
        resolve(REPO)
    assert hub.downloads() == []


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", r"no such model on the hub \(hint: check the name"),
        (401, "RepoNotFound", r"no such model on the hub \(hint: check the name"),
        (403, "GatedRepo", r"is gated \(hint: accept its terms"),
        (500, "", r"the hub refused .*500.*\(hint: try again later"),
    ],
)
def test_refusals(hub: FakeHub, status: int, code: str, message: str) -> None:
    hub.errors[REPO] = (status, code)
    with pytest.raises(ModelError, match=message) as caught:
        resolve(REPO)
    assert "\n" not in str(caught.value)
    assert len(hub.asked) == 1


def test_a_gated_file(hub: FakeHub, files: dict[str, bytes]) -> None:
    hub.repos[REPO] = files
    hub.errors |= {f"{REPO}/{name}": (403, "GatedRepo") for name in files}
    with pytest.raises(ModelError, match="is gated"):
        resolve(REPO)


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at("http://127.0.0.1:9", tmp_path, monkeypatch)
    for name in (REPO, f"{REPO}:Q4_K_M", f"{REPO}:tiny.gguf"):
        with pytest.raises(ModelError, match=r"the hub cannot be reached: .*\(hint: check the network") as caught:
            resolve(name)
        assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written(hub: FakeHub, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.repos[REPO] = files
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match=r"cannot store 'some-org/tiny.llama-0.1': .*hint: set HF_HOME"):
        resolve(REPO)


@pytest.mark.parametrize("name", ["a..b/c", "a/b--c", "a/b.git", "-a/b"])
def test_names_that_the_hub_does_not_allow(hub: FakeHub, name: str) -> None:
    with pytest.raises(ModelError, match="no hub name either"):
        resolve(name)


def test_a_quantisation_that_fits_several_files() -> None:
    names = ["a-Q4_0.gguf", "b-Q4_0.gguf", "c/d-Q8_0-00001-of-00002.gguf", "c/d-Q8_0-00002-of-00002.gguf"]
    with pytest.raises(ModelError, match=r"'Q4_0' fits 2 files: a-Q4_0.gguf, b-Q4_0.gguf"):
        pick_gguf(names, "Q4_0")
    assert pick_gguf(names, "Q8_0") == names[2:]
    assert pick_gguf(names, "c/d-Q8_0-00002-of-00002.gguf") == names[2:]
    assert pick_gguf(names, "Q4") == []

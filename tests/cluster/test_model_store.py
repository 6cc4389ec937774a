"""From a model's name to its folder."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from cluster.environment import read_environment
from cluster.model_store.errors import ModelStoreError
from cluster.model_store.huggingface import download
from cluster.model_store.progress import silent
from cluster.model_store.store import ModelEntry, import_model, imported_models, resolve
from engine.models.errors import ModelError
from engine.models.loader import load_model
from tests.support.gguf_files import write_gguf
from tests.support.paged import PagedModel
from tests.support.tiny_models import tiny_llama


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "Tiny-Llama")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_folder_is_used_where_it_is(folder: Path, home: Path) -> None:
    assert resolve(str(folder), home, silent) == ModelEntry("Tiny-Llama", folder)
    assert not home.exists()


def test_a_relative_folder(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert resolve(".", home, silent) == ModelEntry("Tiny-Llama", folder)


def test_imported_folder_stands_on_its_own(folder: Path, home: Path) -> None:
    (folder / "notes.txt").write_text("not needed")
    entry = import_model(str(folder), home, silent)
    assert entry == ModelEntry("Tiny-Llama", home / "models" / "Tiny-Llama")
    assert {path.name for path in entry.path.iterdir()} == {
        path.name for path in folder.iterdir() if path.name != "notes.txt"
    }
    (folder / "model.safetensors").unlink()
    assert resolve("Tiny-Llama", home, silent) == entry
    assert imported_models(home) == ["Tiny-Llama"]


def test_imported_gguf(folder: Path, home: Path, tmp_path: Path) -> None:
    source = write_gguf(folder, tmp_path / "tiny.f32.gguf")
    entry = import_model(str(source), home, silent, name="mine")
    assert entry == resolve("mine", home, silent)
    assert import_model(str(source), home, silent).name == "tiny.f32"
    assert imported_models(home) == ["mine", "tiny.f32"]


def test_gguf_that_lacks_a_weight_is_not_imported(folder: Path, home: Path, tmp_path: Path) -> None:
    source = write_gguf(folder, tmp_path / "m.gguf", leave_out="model.layers.1.mlp.up_proj.weight")
    with pytest.raises(ModelError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' missing"):
        import_model(str(source), home, silent)
    assert imported_models(home) == []


def test_names_are_not_taken_twice(folder: Path, home: Path) -> None:
    import_model(str(folder), home, silent, name="one")
    with pytest.raises(ModelStoreError, match="a model named 'one' already"):
        import_model(str(folder), home, silent, name="one")


@pytest.mark.parametrize("name", ["demo", "a b", "../up", ".hidden", "a/b"])
def test_names_that_are_not_allowed(folder: Path, home: Path, name: str) -> None:
    with pytest.raises(ModelStoreError, match="cannot name a model"):
        import_model(str(folder), home, silent, name=name)


def test_folders_that_cannot_be_served(folder: Path, home: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "away")
    for action in (resolve, import_model):
        with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
            action(str(folder), home, silent)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        resolve(str(folder), home, silent)
    assert imported_models(home) == []


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json cannot be read"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json must hold a JSON object"),
        ("chat_template.jinja", "{% for %}", "the chat template does not compile"),
    ],
)
def test_text_files_that_the_router_could_not_use(
    folder: Path, home: Path, file: str, text: str, says: str
) -> None:
    (folder / file).write_text(text)
    for action in (resolve, import_model):
        with pytest.raises(ModelError, match=says):
            action(str(folder), home, silent)
    assert imported_models(home) == []


def test_commands_that_load_no_model_need_no_torch() -> None:
    """It takes seconds to import."""
    program = "import sys, cluster.cli.main, cluster.supervisor; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": read_environment().import_path}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_unknown_model_says_what_was_tried(folder: Path, home: Path) -> None:
    import_model(str(folder), home, silent, name="known")
    with pytest.raises(
        ModelStoreError, match=r"'nope' not found: .*not a folder.*\(there are: known\).*hub id"
    ):
        resolve("nope", home, silent)
    with pytest.raises(ModelStoreError, match="neither a folder, nor a file, nor a hub id"):
        import_model("nope", home, silent)


def test_a_gguf_file_must_be_imported_first(folder: Path, home: Path, tmp_path: Path) -> None:
    source = write_gguf(folder, tmp_path / "m.gguf")
    with pytest.raises(ModelStoreError, match="kvrelay models import"):
        resolve(str(source), home, silent)


class _EmptyHub(http.server.BaseHTTPRequestHandler):
    """A hub that has no repository, answering as the real one does."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def empty_hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _EmptyHub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_hub_repository_that_is_not_there(empty_hub: str, tmp_path: Path) -> None:
    with pytest.raises(ModelStoreError, match="owner/name is not on the hub"):
        download("owner/name", tmp_path, silent, endpoint=empty_hub)


def test_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(
        ModelStoreError, match="owner/name cannot be fetched, for the hub cannot be reached"
    ) as raised:
        download("owner/name", tmp_path, silent, endpoint="http://127.0.0.1:9")
    assert "\n" not in str(raised.value)


PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nName three primary colours.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 4, 8, 16,",
)


@pytest.mark.model
@pytest.mark.timeout(900)
def test_demo_model_equals_transformers(tmp_path: Path) -> None:
    """Downloaded, converted and run: the same greedy tokens as transformers, for each chunk size."""
    from_store = resolve("demo", tmp_path, silent)
    assert resolve("demo", tmp_path, silent) == from_store == ModelEntry("demo", tmp_path / "models" / "demo")
    tokenizer = Tokenizer.from_file(str(from_store.path / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    reference = AutoModelForCausalLM.from_pretrained(from_store.path, dtype=torch.float32)
    expected = []
    for tokens in prompts:
        with torch.inference_mode():
            out = reference.generate(
                torch.tensor([tokens]),
                attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
                max_new_tokens=16,
                min_new_tokens=16,
                do_sample=False,
            )
        expected.append(out[0, len(tokens) :].tolist())
    model = load_model(from_store.path)
    for chunk in (256, 16):
        assert PagedModel(model).greedy(prompts, 16, chunk) == expected
    assert tokenizer.decode(expected[0]).startswith(" Paris")

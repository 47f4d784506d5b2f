"""What the documents say is true: every Python block runs; the README's lines run as a script and in a notebook."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from stoker.cli.servers import Server, moto_server
from stoker.pack import pack
from stoker.store import StoreOptions
from support_dataset import jpeg
from support_markdown import blocks

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
AFTER_PYTHON = {"checkpoints.md"}
"""Pages whose commands look at what their Python blocks made."""
STEP = "def step(batch):\n    print('step', tuple(batch['image'].shape), batch['image'].dtype)\n"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """520 small photos in two folders."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(520):
        target = folder / ("cat", "dog")[number % 2] / f"{number:03d}.jpg"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(jpeg(number))
    return folder


@pytest.fixture(scope="module")
def server(photos: Path) -> Iterator[Server]:
    """An S3 server whose bucket `bucket` holds them, packed, under `photos`."""
    with moto_server() as running:
        running.make_bucket("bucket")
        options = StoreOptions(endpoint=running.endpoint, access_key=running.access_key, secret_key=running.secret_key)
        pack(str(photos), "s3://bucket/photos", options=options, shard_size=200_000)
        yield running


@pytest.fixture
def place(photos: Path, tmp_path: Path) -> Path:
    """An empty working folder with a copy of the photos in it."""
    shutil.copytree(photos, tmp_path / "photos")
    return tmp_path


def run(code: str, folder: Path, server: Server) -> str:
    """Run a plain script without a main guard, as a reader would; its output."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script], cwd=folder, env={**os.environ, **server.environment()},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readmes_lines_run_as_a_script(place: Path, server: Server) -> None:
    """No main guard, an S3 bucket, two batches of 256."""
    (code,) = blocks(ROOT / "README.md", "python")
    said = run(STEP + code, place, server)
    assert said.count("step (256, 224, 224, 3) torch.uint8") == 2
    assert "waited" in said


def test_the_chinese_readme_has_the_same_lines() -> None:
    """Both READMEs show the same program and the same figures."""
    here, there = ROOT / "README.md", ROOT / "README.zh-CN.md"
    assert [strip_comments(b) for b in blocks(here, "python")] == [strip_comments(b) for b in blocks(there, "python")]
    assert blocks(here, "console") == blocks(there, "console")


def strip_comments(code: str) -> str:
    """Code without what stands behind `#`."""
    return "\n".join(line.split("  #")[0].rstrip() for line in code.splitlines())


def test_the_readmes_lines_run_in_a_notebook(place: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one cell of a real kernel, twice, with the step defined in another cell."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    (code,) = blocks(ROOT / "README.md", "python")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in (STEP, code, code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(place)}}).execute()
    said = [out["text"] for cell in notebook.cells for out in cell.get("outputs", []) if out["name"] == "stdout"]
    assert "".join(said).count("step (256, 224, 224, 3)") == 4


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_the_blocks_of_a_document_run(document: Path, place: Path, server: Server) -> None:
    """All Python blocks of a page, one after the other, in a folder that holds `photos/`."""
    code = "\n".join(blocks(document, "python"))
    if code:
        run(code, place, server)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_the_commands_of_a_document_run(document: Path, place: Path, server: Server) -> None:
    """Every `$ stoker …` line of a console block exits with 0."""
    if document.name in AFTER_PYTHON:
        run("\n".join(blocks(document, "python")), place, server)
    environ = {**os.environ, **server.environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for block in blocks(document, "console"):
        for line in block.splitlines():
            if line.startswith("$ stoker "):
                done = subprocess.run(
                    line[2:],
                    shell=True,
                    cwd=place,
                    env=environ,
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=120,
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_an_example_runs(example: Path, place: Path, server: Server) -> None:
    """As it stands, in a folder that holds `photos/`."""
    run(example.read_text(), place, server)

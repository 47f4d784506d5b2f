"""The public surface, frozen: names, commands, cheap imports. Changing it is deliberate."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import stoker

NAMES = [
    "open", "Dataset", "tokens", "Mixture", "StoreOptions", "Cache", "image", "json", "npy", "pt", "Window", "Loader",
    "LoaderReport", "Budget", "Buckets", "Checkpointer", "observe", "StokerError", "UsageError", "SampleError",
]  # fmt: skip


def test_the_public_names() -> None:
    """Exactly these, and each can be had."""
    assert stoker.__all__ == NAMES
    assert all(getattr(stoker, name) is not None for name in NAMES)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        stoker.nothing_of_the_kind  # noqa: B018  # looking is what is tested


def test_the_loaders_arguments() -> None:
    """Names, order and defaults of `Loader`."""
    found = {n: p.default for n, p in inspect.signature(stoker.Loader).parameters.items()}
    empty = inspect.Parameter.empty
    assert found == {
        "dataset": empty, "batch_size": empty, "fields": None, "seed": 0, "shuffle": "auto", "canonical_nodes": 1,
        "tail": "drop", "transform": None, "batch_transform": None, "on_bad": "raise", "on_bad_max": 0.001,
        "device": None, "device_transform": None, "output": "torch", "layout": "dict", "rank": None,
        "world_size": None, "budget": None,
    }  # fmt: skip


def test_the_checkpointers_arguments() -> None:
    """Names, order and defaults of `Checkpointer` and its methods."""
    empty, kind = inspect.Parameter.empty, stoker.Checkpointer

    def of(function: object) -> dict[str, object]:
        found = inspect.signature(function).parameters.items()
        return {name: one.default for name, one in found if name != "self"}

    assert of(kind) == {
        "local": empty, "remote": None, "keep": 3, "mode": "async", "on_full": "skip", "failures_max": 3,
        "bytes_per_s_max": None, "options": None, "timeout_s": 60.0,
    }  # fmt: skip
    assert of(kind.save) == {"step": empty, "state": empty, "loader": None, "metrics": None, "per_rank": None}
    assert of(kind.resume) == {"state": None, "loader": None, "step": None, "strict": True}
    assert of(kind.wait) == {"seconds": None, "remote": False}
    assert of(kind.before_optimizer_step) == of(kind.status) == {}


def run(code: str) -> str:
    """Standard output of a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_stoker_is_cheap() -> None:
    """Neither torch nor pyarrow nor obstore comes with `import stoker`, nor with its errors and units."""
    heavy = "torch", "pyarrow", "obstore", "numpy", "PIL", "rich"
    assert (
        run(f"import sys, stoker, stoker.errors, stoker.units; print([m for m in {heavy} if m in sys.modules])") == "[]"
    )


def test_packing_and_warming_need_no_torch() -> None:
    """The rooms up to dataset, and the command line, run on a node without torch."""
    rooms = "stoker.dataset, stoker.pack, stoker.cli.main, stoker.cli.pack, stoker.cli.index"
    code = f"import sys, {rooms}; print('torch' in sys.modules)"
    assert run(code) == "False"


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["--help"], 0), (["nope"], 2), ([], 2)])
def test_exit_codes_of_the_command(arguments: list[str], code: int) -> None:
    """Help and version are 0, wrong usage is 2."""
    done = subprocess.run([sys.executable, "-m", "stoker.cli.main", *arguments], capture_output=True, check=False)
    assert done.returncode == code


@pytest.mark.parametrize(
    "command", ["checkpoint", "convert", "demo", "formats", "index", "inspect", "pack", "plan", "tune", "verify"]
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    """`--help` ends with a line to try."""
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", command, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "Example: stoker " in done.stdout

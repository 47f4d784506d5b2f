"""What users do at the edges: places that are one, arguments that mean nothing, states of unusual models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.errors import CheckpointError, UsageError


@pytest.mark.parametrize("name", ["link", "ck/../ck", "file"])
def test_one_folder_under_two_names_is_one(tmp_path: Path, name: str) -> None:
    """A copy in the same folder protects nothing, whatever the folder is called."""
    (tmp_path / "ck").mkdir()
    (tmp_path / "link").symlink_to("ck")
    remote = (tmp_path / "ck").as_uri() if name == "file" else f"{tmp_path}/{name}"
    with pytest.raises(UsageError, match="local and as remote"):
        stoker.Checkpointer(tmp_path / "ck", remote)
    with pytest.raises(UsageError, match="another remote"):
        stoker.Checkpointer(tmp_path / "other", [tmp_path / "ck", remote])


@pytest.mark.parametrize(
    "arguments",
    [
        {"bytes_per_s_max": 0},
        {"bytes_per_s_max": "1MB"},
        {"timeout_s": float("nan")},
        {"timeout_s": -1},
        {"failures_max": 0},
        {"remote": [None]},
    ],
)
def test_arguments_that_mean_nothing(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Are refused at once, not when the first upload divides by them."""
    with pytest.raises(UsageError):
        stoker.Checkpointer(tmp_path / "ck", **arguments)


def test_a_local_place_that_is_no_folder(tmp_path: Path) -> None:
    """Is told when the Checkpointer is made, not by the first save."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="no folder"):
        stoker.Checkpointer(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be made"):
        stoker.Checkpointer(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="folders or URLs"):
        stoker.Checkpointer(None)  # type: ignore[arg-type]

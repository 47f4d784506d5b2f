"""Saves training state without stopping training, and resumes from the newest checkpoint that is whole and right."""

from stoker.checkpoint.checkpointer import Checkpointer
from stoker.checkpoint.retention import Keep
from stoker.checkpoint.saver import Save
from stoker.checkpoint.values import Resumed, Status

__all__ = ["Checkpointer", "Keep", "Resumed", "Save", "Status"]

"""Room tune: the settings with which a DataLoader feeds a training step, found by trying them."""

from stoker.tune.report import TuneReport
from stoker.tune.search import Limits, tune
from stoker.tune.settings import Setting
from stoker.tune.trial import Target, Trial

__all__ = ["Limits", "Setting", "Target", "Trial", "TuneReport", "tune"]

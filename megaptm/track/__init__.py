"""Experiment tracking: metrics are written to a journal in the run folder, and sent from there to MLflow in the
background."""

from megaptm.track.address import default_uri, how_to_look
from megaptm.track.journal import read_metrics
from megaptm.track.tracker import Tracker, upload

__all__ = ["Tracker", "default_uri", "how_to_look", "read_metrics", "upload"]

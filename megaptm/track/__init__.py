"""Experiment tracking: metrics are written to a journal in the run folder, and sent from there to MLflow in the
background."""

from megaptm.track.journal import read_metrics
from megaptm.track.tracker import Tracker, upload
from megaptm.track.uri import default_uri, view_instructions

__all__ = ["Tracker", "default_uri", "read_metrics", "upload", "view_instructions"]

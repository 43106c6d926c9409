"""Experiment tracking: metrics are written to a journal in the run folder, and sent from there to MLflow in the
background."""

from megaptm.track.journal import read_metrics
from megaptm.track.tracker import Tracker, upload_metrics
from megaptm.track.uri import default_tracking_uri, view_instructions

__all__ = ["Tracker", "default_tracking_uri", "read_metrics", "upload_metrics", "view_instructions"]

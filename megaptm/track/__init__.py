"""What a run reports of itself: a journal in the run folder first, MLflow from there, in the background."""

from megaptm.track.address import default_uri, how_to_look
from megaptm.track.journal import read_metrics
from megaptm.track.tracker import Tracker, upload

__all__ = ["Tracker", "default_uri", "how_to_look", "read_metrics", "upload"]

"""Configs: from YAML to a typed and checked `Config`. Does not import torch."""

from megaptm.config.model import resolve, resolve_model
from megaptm.config.read import Draft, UncheckedConfig, config_to_yaml, draft, load, load_run, read_model
from megaptm.config.schema import (
    CheckpointConfig,
    CommunicationConfig,
    Config,
    DataConfig,
    Layout,
    LossScaleConfig,
    ModelConfig,
    OptimizerConfig,
    SpikeConfig,
    StopConfig,
    StragglerConfig,
    TrackConfig,
    TrainConfig,
)
from megaptm.config.yamls import format_override

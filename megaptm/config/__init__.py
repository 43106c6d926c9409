"""Configs: from YAML to a typed and checked `Config`. Does not import torch."""

from megaptm.config.model import resolve_model, resolve_spec
from megaptm.config.read import (
    Draft,
    UncheckedConfig,
    config_to_yaml,
    load_config,
    load_run_config,
    read_config_draft,
    read_model_spec,
)
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

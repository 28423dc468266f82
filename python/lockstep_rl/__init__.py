"""The package `lockstep_rl`: TRL's trainers and configurations (GRPO, PPO, DPO, SFT and more) over an engine in Rust. A
TRL script runs when its import is changed.

The package needs neither torch nor transformers. If they are installed, trainers also take their objects: models,
tokenizers, callbacks.
"""

from . import ops, rewards
from ._config import AsyncGRPOConfig, DPOConfig, GRPOConfig, PPOConfig, RewardConfig, RLOOConfig, SFTConfig, field_table
from ._callbacks import TrainerCallback, TrainerControl, TrainerState
from ._loop import Completion, Engine, Group, Model, Sampling, Scores, Trainer
from ._native import StopSignal, __build__, __version__
from ._rewards import by_group
from ._scripts import (
    DatasetConfig,
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_dataset,
    get_peft_config,
    get_quantization_config,
)
from ._trainers import (
    AsyncGRPOTrainer,
    DPOTrainer,
    GRPOTrainer,
    PPOTrainer,
    RewardTrainer,
    RLOOTrainer,
    SFTTrainer,
    TrainOutput,
)

__all__ = [
    "AsyncGRPOConfig",
    "AsyncGRPOTrainer",
    "Completion",
    "DPOConfig",
    "DPOTrainer",
    "DatasetConfig",
    "DatasetMixtureConfig",
    "Engine",
    "GRPOConfig",
    "GRPOTrainer",
    "Group",
    "Model",
    "ModelConfig",
    "PPOConfig",
    "PPOTrainer",
    "RLOOConfig",
    "RLOOTrainer",
    "RewardConfig",
    "RewardTrainer",
    "SFTConfig",
    "SFTTrainer",
    "Sampling",
    "Scores",
    "ScriptArguments",
    "StopSignal",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrlParser",
    "__build__",
    "__version__",
    "by_group",
    "field_table",
    "get_dataset",
    "get_peft_config",
    "get_quantization_config",
    "ops",
    "rewards",
]

"""The names of trackers as an enum, as scripts for Accelerate import them."""

from enum import StrEnum


class LoggerType(StrEnum):
    """A name that `log_with` takes."""

    ALL = "all"
    LOCAL = "local"
    AIM = "aim"
    CLEARML = "clearml"
    COMETML = "comet_ml"
    DVCLIVE = "dvclive"
    MLFLOW = "mlflow"
    SWANLAB = "swanlab"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"
    WANDB = "wandb"

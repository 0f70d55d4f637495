"""The settings of a config file as objects, under the path that programs import them from."""

from accel_names.commands.cluster_config import BaseConfig as BaseConfig
from accel_names.commands.cluster_config import ClusterConfig as ClusterConfig
from accel_names.commands.cluster_config import SageMakerConfig as SageMakerConfig
from accel_names.commands.cluster_config import load_config_from_file as load_config_from_file

"""The estimate of a model's memory as functions."""

from accel.compat.names.estimating import create_empty_model as create_empty_model
from accel.compat.names.estimating import estimate_command as estimate_command
from accel.compat.names.estimating import estimate_command_parser as estimate_command_parser
from accel.compat.names.estimating import gather_data as gather_data

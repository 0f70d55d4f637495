"""The estimate of the memory of a model, under the path that programs import it from."""

from accel_names.estimating import create_empty_model as create_empty_model
from accel_names.estimating import estimate_command as estimate_command
from accel_names.estimating import estimate_command_parser as estimate_command_parser
from accel_names.estimating import gather_data as gather_data

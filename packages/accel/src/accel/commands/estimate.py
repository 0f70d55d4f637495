"""The estimate of the memory of a model, under the path that programs import it from."""

from accel_names.commands.estimating import add_timm_hub_prefix as add_timm_hub_prefix
from accel_names.commands.estimating import create_empty_model as create_empty_model
from accel_names.commands.estimating import estimate_command as estimate_command
from accel_names.commands.estimating import estimate_command_parser as estimate_command_parser
from accel_names.commands.estimating import gather_data as gather_data

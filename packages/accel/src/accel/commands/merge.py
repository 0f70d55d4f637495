"""The merge of sharded weights as functions."""

from accel_names.merging import merge_command as merge_command
from accel_names.merging import merge_command_parser as merge_command_parser

"""The merge of sharded weights, under the path that programs import it from."""

from accel_names.commands.merging import merge_command as merge_command
from accel_names.commands.merging import merge_command_parser as merge_command_parser

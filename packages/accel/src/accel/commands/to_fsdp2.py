"""The conversion of config files for FSDP1, under the path that programs import it from."""

from accel_names.commands.to_fsdp2 import convert_config_to_fsdp2 as convert_config_to_fsdp2
from accel_names.commands.to_fsdp2 import to_fsdp2_command as to_fsdp2_command
from accel_names.commands.to_fsdp2 import to_fsdp2_command_parser as to_fsdp2_command_parser

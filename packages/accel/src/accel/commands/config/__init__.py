"""The functions that write and read config files, under the path that scripts import them from."""

from accel_names.lazy_names import door

__getattr__, __dir__ = door("accel.commands.config", "default_config_file load_config_from_file write_basic_config")

"""Config files of the launcher."""

from accel_names.lazy_names import door

__getattr__, __dir__ = door("accel.commands.config", "default_config_file load_config_from_file write_basic_config")

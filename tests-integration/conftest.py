"""Options, markers and fixtures of this repository's own suite, beside those of accel-testing."""

pytest_plugins = ["forked_programs.plugin", "suite.device_option", "suite.file_order", "suite.leak_check", "suite.soak"]

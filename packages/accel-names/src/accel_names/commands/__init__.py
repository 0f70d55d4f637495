"""Run commands of accel as functions, and their parsers, for programs that read options with argparse."""

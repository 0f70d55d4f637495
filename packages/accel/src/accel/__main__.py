"""Run the command `accel`, for `python -m accel`."""

from accel_launch.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

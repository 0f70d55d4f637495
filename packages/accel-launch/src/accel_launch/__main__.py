"""Run the command `accel` by `python -m accel_launch`."""

import sys

from accel_launch.cli import main

sys.exit(main())

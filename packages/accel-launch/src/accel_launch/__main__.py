"""`python -m accel_launch` is the command `accel`."""

import sys

from accel_launch.cli import main

sys.exit(main())

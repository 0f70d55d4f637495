"""What the suite of this repository needs of pytest beside accel-testing, and stand-ins that its tests import."""

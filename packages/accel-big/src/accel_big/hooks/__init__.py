"""Run code before and after the forward of a module, with the names of Accelerate."""

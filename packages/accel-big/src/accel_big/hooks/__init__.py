"""Code that runs before and after the forward of a module, with the names of Accelerate."""

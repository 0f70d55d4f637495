"""Run functions of a notebook or a script on several processes."""

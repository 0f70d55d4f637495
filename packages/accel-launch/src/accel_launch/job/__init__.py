"""Choose which processes of a job start on this machine, and run them."""

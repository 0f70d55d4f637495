"""What is done to a model before its parameters are spread, each stage in a file."""

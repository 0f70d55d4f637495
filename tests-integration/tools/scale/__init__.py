"""What accel costs as processes, files and requests grow in number, drawn as pictures."""

"""Give weights their files and their memory: measure them, divide them into files, and read them by parts."""

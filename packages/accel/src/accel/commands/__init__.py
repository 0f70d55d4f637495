"""The commands of the launcher as functions, under the paths that programs import them from."""

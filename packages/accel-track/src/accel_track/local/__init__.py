"""The record of a run: a folder with its metrics, tables, images, configuration and story."""

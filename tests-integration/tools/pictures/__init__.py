"""Pictures of the pages, drawn from what the packages do: `python -m pictures` in tests-integration/tools."""

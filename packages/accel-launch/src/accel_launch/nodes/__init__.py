"""Jobs of many machines, on torch's elastic agent."""

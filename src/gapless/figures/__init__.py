"""Pictures and tables of experiments. Drawing needs matplotlib, the extra `gapless[plots]`."""

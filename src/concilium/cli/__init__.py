"""The command line: one file per command, heavy imports only where a command needs them."""

"""The command line: thin commands that start fast. Nothing here imports torch before a command needs it."""

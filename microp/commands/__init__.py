"""What the commands and the Python interface do with a configuration."""

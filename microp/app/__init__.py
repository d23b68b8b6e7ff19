"""What stands between a typed command and a run: configuration, stored sweeps, expressions."""

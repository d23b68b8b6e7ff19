"""What the commands of microp stand on: where its files are, its version, and the stored sweeps."""

"""From recorded rows to figures. Nothing here imports torch or wandb."""

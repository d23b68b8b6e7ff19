"""Figures and the report, made from recorded runs. Nothing here imports torch or wandb."""

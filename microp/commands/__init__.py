"""What the commands and the Python interface do with a checked configuration; what the harness itself costs."""

from microp.commands.interface import Run, measure, price
from microp.commands.pricing import Price

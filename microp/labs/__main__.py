"""`python -m microp.labs`: prints the course's labs in their order, each with its command."""

from microp.app import terminal
from microp.labs import LABS

for number, (name, lesson) in enumerate(LABS.items(), start=1):
    terminal.out.print(f"{number}  python -m microp.labs.{name:16} {lesson}", soft_wrap=True, highlight=False)

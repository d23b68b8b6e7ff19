"""`python -m microp.labs`: the course's labs in their order, and the command of each."""

from microp.labs import LABS
from microp.terminal import out

for number, (name, lesson) in enumerate(LABS.items(), start=1):
    out.print(f"{number}  python -m microp.labs.{name:16} {lesson}", soft_wrap=True, highlight=False)

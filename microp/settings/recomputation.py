"""The checkpointing policy: which activations are recomputed in the backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from microp.settings.rules import Name, Range, broken_rules


@dataclass
class Checkpointing:
    """Which microbatches are recomputed, and in how many segments of a stage.

    Attributes:
        name: `never`, `except_last`, `always` or `segments`.
        segments: the number of segments (groups of consecutive layers) into which a stage is cut. Each
            keeps only its input (Chen et al., arXiv 1604.06174); 0 keeps every activation. If it
            exceeds the stage's layers, each layer is a segment. Unlike
            `torch.utils.checkpoint.checkpoint_sequential`, the last segment is recomputed too:
            otherwise a pipeline keeps its activations for every microbatch in flight.
        spare_last: whether the last microbatch keeps everything (GPipe's except_last: its backward
            follows its forward directly, so recomputation would save nothing).
    """

    name: Annotated[str, Name()]
    segments: Annotated[int, Range(0, 100_000)]
    spare_last: bool

    def segments_of(self, microbatch: int, chunks: int) -> int:
        """Return the number of segments of `microbatch` that are recomputed."""
        return 0 if microbatch in self.spared(chunks) else self.segments

    def spared(self, chunks: int) -> tuple[int, ...]:
        """Return the microbatches that are not recomputed while others are."""
        return (chunks - 1,) if self.spare_last else ()

    def problems(self) -> list[str]:
        """List what is wrong with these values, one sentence each."""
        if self.name == "segments" and self.segments < 1:
            return [f"checkpointing.segments={self.segments} is below 1: use at least 1"]
        return broken_rules(self, "checkpointing.")


NEVER = Checkpointing("never", 0, False)

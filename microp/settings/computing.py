"""How the layers of a model compute, besides what the model's own settings say."""

from __future__ import annotations

from dataclasses import asdict, dataclass

LOWERED = {"bf16": "bfloat16"}  # a value of the key `dtype` -> torch's name of the type


@dataclass(frozen=True)
class Computing:
    """How the layers compute; its fields are keys of the configuration.

    Attributes:
        dtype: `bf16`: products in bf16 by autocast, with weights and their gradients in float32; None: everything in
            the model's own type.
        compile: whether the layers are compiled by torch.compile.
    """

    dtype: str | None = None
    compile: bool = False

    @property
    def words(self) -> list[str]:
        """The keys with another value than by default, as they are typed."""
        return [_word(key, value) for key, value in asdict(self).items() if value]

    def difference(self, other: Computing) -> str | None:
        """Return the first difference as `dtype=bf16, this run has dtype=null`; None if there is none."""
        for key, mine in asdict(self).items():
            if mine != (theirs := asdict(other)[key]):
                return f"{_word(key, mine)}, this run has {_word(key, theirs)}"
        return None

    def problems(self, model: str, dtype: str) -> list[str]:
        """List what is wrong with these values for a model of this name and with this type of its weights."""
        if self.dtype not in LOWERED or dtype == "float32":
            return []
        return [
            f"dtype={self.dtype} needs weights in float32, and those of model={model} are in {dtype}: use dtype=null, "
            "or a model in float32"
        ]


def _word(key: str, value: object) -> str:
    return f"{key}={'null' if value is None else str(value).lower()}"


AS_WRITTEN = Computing()

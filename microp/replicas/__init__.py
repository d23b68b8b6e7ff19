"""Data parallelism: after a step every replica holds the sum of all replicas' gradients.

::

    naive   backward ──────────────►│w₀│w₁│w₂│w₃│w₄│      one sum per parameter
    flat    backward ──────────────►│w₀ w₁ w₂ w₃ w₄│      one sum per stage
    ddp     backward ── w₄ w₃ ───────── w₂ w₁ ── w₀        one sum per bucket, as soon as it is full,
                            └►│w₄ w₃│       └►│w₂ w₁│w₀│   while the backward continues

All three use the same mechanism (`buckets`): a stage's parameters are cut into buckets, and a
bucket is summed when it is full, or when the stage's last gradient is complete.

A replica's loss is weighted by its share of the whole batch's rows, so the *sum* over the
replicas is the batch's gradient, for any number of rows. (With equal shares this is the usual
average of the replicas' mean gradients.)
"""

from microp.replicas.buckets import is_unused, to_sum
from microp.replicas.gradient_sync import open_sync

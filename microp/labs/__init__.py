"""The course: from one process to pipelines and replicas, a lab a file, in the order of `LABS`.

::

    monolith ─ memory_wall ─┬─ manual_split ──── ping_pong ─ naive ─ gpipe ─ one_f_one_b      pipelines
                            └─ manual_replicas ─ ddp                                          replicas
"""

LABS = {
    "monolith": "16 layers in one process: the loss falls",
    "memory_wall": "why a model does not fit a card, and how many cards it takes",
    "manual_split": "two halves by hand: what has to be handed over, and that the gradients are the monolith's",
    "manual_replicas": "two copies by hand: averaged gradients are the whole batch's",
    "ping_pong": "ranks, the world, and what a message costs: latency and bandwidth",
    "naive": "four ranks, one of which works: three quarters of the time are idle",
    "gpipe": "the same step in microbatches: the bubble shrinks, activations pile up",
    "one_f_one_b": "the same step in another order: the same bubble, less memory",
    "ddp": "gradients leave while the backward still goes on",
}

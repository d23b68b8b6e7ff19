"""The course: from one process to pipelines and replicas, one lab per file, in the order of `LABS`.

::

    monolith ─ memory_wall ─┬─ manual_split ──── ping_pong ─ naive ─ gpipe ─ one_f_one_b ─ train_text   pipelines
                            └─ manual_replicas ─ ddp                                          replicas
"""

LABS = {
    "monolith": "16 layers in one process: the loss falls",
    "memory_wall": "why a model does not fit on a card, and how many cards it needs",
    "manual_split": "two halves by hand: what has to be sent, and gradients that equal the monolith's",
    "manual_replicas": "two copies by hand: their averaged gradients are those of the whole batch",
    "ping_pong": "ranks, the world, and the time of a message: latency and bandwidth",
    "naive": "four ranks that work one at a time: each idles three quarters of the time",
    "gpipe": "the same step in microbatches: the bubble shrinks, activations accumulate",
    "one_f_one_b": "the same step in another order: the same bubble, less memory",
    "ddp": "gradients are summed over the replicas while the backward still runs",
    "train_text": "a small gpt learns from text in a pipeline as in one process, and then writes some",
}

"""microp: a laboratory for pipeline parallelism in PyTorch.

A schedule is a value. It is validated, priced, drawn and run; simulated and measured
time are the same type, so a prediction and a measurement are compared by one join::

    Schedule ──┬── validate
               ├── simulate ─► spans ─┐
               ├── engine ───► spans ─┴─► metrics, drawings, records, report
               └── render
"""

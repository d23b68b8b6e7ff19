"""Makes a job of a configuration: its rules, its schedule and partition, what is predicted of it.

::

    Config ── problems ─► refused, or ── make_job ─► Job
"""

from microp.factory.job_factory import job_of, job_with, make_job
from microp.factory.memory_advice import subject_of, with_advice
from microp.factory.partition_factory import memory_cap
from microp.factory.prediction import lacks_profile, layer_memory, predict, predicted_seconds
from microp.factory.pricing_job import PricingJob, costs_depend_on_order, make_pricing_job, with_order
from microp.factory.profiles import doubt, machine_of, profile_command, profile_notes, profile_problems, used_profile
from microp.factory.resume import about_resumed, find_resumed, nothing_to_resume

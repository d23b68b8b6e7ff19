"""Ranks on several hosts: they meet, compare what they were given, and set their clocks beside each other."""

from microp.hosts.joined import gather_rows, run_joined
from microp.hosts.meeting import HostsError, Joined, join

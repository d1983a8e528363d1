"""Sweeps of trials with stable keys: what to run, what is stored, who runs it."""

from headprune.lab.experiments import arithmetic as arithmetic  # these register their kinds of work
from headprune.lab.experiments import job_step as job_step
from headprune.lab.experiments import measures as measures

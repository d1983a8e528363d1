"""What each command does, as a function: options in, a typed result out. Experiments and the command line run these.

`options/` holds what can be asked for, one light dataclass a job; a file beside this one holds what is done, and the
result. A job is found by its name: `headprune.jobs.NAME` has a function of that name with `-` as `_`.
"""

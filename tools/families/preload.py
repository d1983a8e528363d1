"""What every process needs, imported once by the server that they are forked from."""

import tools.families.families  # noqa: F401
import torch
import transformers.generation.utils
import transformers.modeling_utils
import transformers.models.auto.modeling_auto  # noqa: F401

torch.set_num_threads(1)  # before anything computes: threads do not survive a fork

"""Other libraries' words, kept from people who did not ask for them: `headprune --debug` shows them all."""

from __future__ import annotations

import logging
import os
import sys
import warnings

NOISY = ("torchao", "torch.utils._pytree", "torch.distributed.elastic", "datasets", "httpx", "py.warnings")


def quiet_libraries() -> None:
    """Before they are imported: some speak while they are. Errors are still told."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not sys.warnoptions:  # somebody who asks Python for warnings gets them
        warnings.simplefilter("ignore")
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)

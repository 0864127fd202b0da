"""Imported by the fork server only: everything a stage process would import for itself.

Must leave no thread running, or a fork of it could hang.
"""

import backend.code_predictor.cpu_kernel
import backend.cpu_worker
import backend.talker  # noqa: F401

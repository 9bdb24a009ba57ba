"""Parts of a recorded step: the names under which a rank stores what its step consists of.

Every instant of a step belongs to exactly one part, so the parts add up to the step.
"""

PREFIX = "parts/"
STEP = "step_s"
FORWARD = "forward_s"
BACKWARD = "backward_s"
OPTIMIZER = "optimizer_s"
OTHER_KERNELS = "other_kernels_s"  # started outside forward, backward and optimizer
COMMUNICATION = "communication_s"  # that no compute hides
COPIES = "copies_s"  # that neither compute nor communication hides
IDLE_INPUT = "idle_input_s"
IDLE_SYNC = "idle_sync_s"  # after the host waited for the GPU
IDLE_HOST = "idle_host_s"
IDLE_BETWEEN = "idle_between_s"  # the GPU's own pause between two kernels that are launched already
IDLE_QUEUED = "idle_queued_s"  # launched, but held back for longer than that
IDLE = (IDLE_INPUT, IDLE_SYNC, IDLE_HOST, IDLE_BETWEEN, IDLE_QUEUED)
PARTS = (FORWARD, BACKWARD, OPTIMIZER, OTHER_KERNELS, COMMUNICATION, COPIES, *IDLE)

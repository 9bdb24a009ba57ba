"""The rows of docs/reliability.md: what may break, and what is expected then."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A fault and what has to happen."""

    number: int
    fault: str
    expected: str


ROWS = (
    Row(1, "a rank raises", "code 4 within 2 s, with the last line of its traceback"),
    Row(2, "a rank exits with 0 too early", "code 4; the rank and its step are named"),
    Row(3, "a rank exits with another code", "code 4; the rank's code is recorded"),
    Row(4, "SIGKILL of a rank", "code 4 within 2 s"),
    Row(5, "SIGSEGV or SIGABRT of a rank", "code 4; the signal is named"),
    Row(6, "SIGSTOP of a rank", "code 5 within the stall limit + 1 s; the right rank, with its stacks"),
    Row(7, "one rank waits for ever", "code 5; the right rank"),
    Row(8, "all ranks wait for ever", "code 5; all ranks are named"),
    Row(9, "one rank is three times slower", "code 0; the straggler is named with its cost"),
    Row(10, "one step stalls for seconds", "code 0; the outlier is counted"),
    Row(11, "a rank hangs while it starts", "code 5"),
    Row(12, "a rank hangs while it ends", "ended after the teardown limit; results are valid"),
    Row(13, "a rank ignores SIGTERM", "SIGKILL"),
    Row(14, "a data-loader worker outlives its rank", "ended"),
    Row(15, "Ctrl-C once, and twice", "code 130 within 5 s with one line; at once"),
    Row(16, "SIGTERM, SIGHUP", "codes 143 and 129; nothing is left"),
    Row(17, "SIGUSR1 before preemption", "the run can be resumed without loss"),
    Row(18, "SIGKILL of the command line", "no process is left after 2 s"),
    Row(19, "SIGKILL between launches, then --resume", "no launch is lost, none is measured twice"),
    Row(20, "SIGKILL during writes, 100 times", "every file parses"),
    Row(21, "the disk is full", "code 7; old files are whole"),
    Row(22, "the output folder is read-only", "code 3 before anything is launched"),
    Row(23, "TMPDIR cannot be written", "another folder is used, or code 3"),
    Row(24, "the port is taken (several machines)", "code 3 within 5 s; the port is named"),
    Row(25, "the host has no memory left", "the cause is named, not a signal's number"),
    Row(26, "the device has no memory left, in a sweep", "that launch is `oom`; the sweep goes on"),
    Row(27, "the loss is NaN or infinite", "the launch is `invalid`"),
    Row(28, "ranks disagree on a collective", "code 4; both are named"),
    Row(29, "parameters differ between ranks", "the launch is `invalid`"),
    Row(30, "two runs into one folder", "the second ends with code 3; the holder is named"),
    Row(31, "a lock of a process that is gone", "taken over"),
    Row(32, "the wall clock jumps", "durations are unaffected"),
    Row(33, "no file descriptors or processes left", "code 3"),
    Row(34, "a rank prints 1 GB", "cut off; nothing waits"),
    Row(35, "sbatch is missing, fails, or the job never leaves the queue", "code 3, 3, and a deadline"),
    Row(36, "a noisy machine", "`unstable`, said in the summary"),
    Row(37, "random.py, profile.py, torch.py or scalescope/ in the working folder", "ignored"),
    Row(38, "/dev/shm is full, or has no inodes left", "TMPDIR is used; never SIGBUS"),
    Row(
        39,
        "zygote or rank stops after the last step; output blocks",
        "the teardown limit applies; the finished launch is stored",
    ),
    Row(
        40,
        "text that is not UTF-8 in a message, path or host name",
        "escaped; the launch is recorded; the right code",
    ),
    Row(
        41,
        "symlinks, FIFOs, devices, gzip bombs, long names in a run folder",
        "refused file by file; nothing outside is read or written; the others render",
    ),
    Row(
        42,
        "a trial_id that does not match its settings; any changed field",
        "reported line by line; no traceback",
    ),
    Row(
        43, "stored shell text; a checkout with hooks or core.fsmonitor", "never run without the user's word"
    ),
    Row(44, "escape sequences in stored or thrown text", "never reach the terminal"),
    Row(45, "the holder of the network namespaces dies", "built anew for the next launch"),
    Row(
        46,
        "stdout or stderr closed or full; tc, nvidia-smi or git hangs",
        "the measurement is kept; at most 5 s each; the right code",
    ),
    Row(47, "detached grandchildren, shared memory, temporary files", "ended and removed, or named"),
    Row(
        48,
        "attached: a lone rank, wrong RANK, WORLD_SIZE, LOCAL_RANK or port",
        "one line within --init-timeout",
    ),
    Row(49, "secrets in the environment or in --env", "in no file that is written"),
    Row(50, "listening sockets", "none beyond loopback"),
    Row(
        51,
        "a measured command saves checkpoints in any usual way",
        "the user's folder is as it was, or the command is refused",
    ),
    Row(52, "our record cannot be written under --keep-running", "the training reaches its end; noted once"),
    Row(53, "signals under --keep-running", "passed on as they are; the training is never ended by us"),
    Row(
        54,
        "a ledger that is damaged, locked, a FIFO, a device or unwritable; no HOME",
        "a warning; what was measured is written before",
    ),
    Row(55, "a script changes between launches or before `resume`", "noticed by its hash, not pooled"),
    Row(56, "secrets by their value, in URLs, in a measured command", "in no file that is written"),
    Row(57, "runs that start in the same second", "each has a folder of its own"),
)
BY_NUMBER = {row.number: row for row in ROWS}
